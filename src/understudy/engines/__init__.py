"""Engines hold a model's weights: they sample replies, compute log-probabilities and update the weights.

Imports `core`, `formats`, `clients` and `algorithms`. One of the three packages that import torch.
"""
