"""Engines: weights to sample from, to read and to move."""
