"""Continuous batching: key-value cache, forward passes, filters and n-gram speculation."""
