"""Agents and the rollout loop, with groups, the curriculum, reward shaping, replay and forks of episodes.

It imports only `core`, `formats`, `clients`, `envs`, `algorithms` and `engines`, and no torch.
"""
