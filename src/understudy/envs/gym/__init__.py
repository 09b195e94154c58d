"""Adapters of environments to text-based frameworks such as skyrl-gym. They import only what `envs` imports."""
