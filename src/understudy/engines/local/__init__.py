"""The PyTorch engine: one process, one machine."""
