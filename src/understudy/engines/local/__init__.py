"""The local engine: trains with PyTorch on one machine."""
