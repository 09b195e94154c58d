"""Batches, advantages and losses as pure functions of tensors, and the algorithm presets.

It imports only `core`, and torch except in `config`, `preference_config` and `presets`.
"""
