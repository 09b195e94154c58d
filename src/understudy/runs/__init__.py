"""The config of a run and its folder: checkpoints, metrics, health, provenance and trackers.

Imports `core` to `rollouts`, without torch.
"""
