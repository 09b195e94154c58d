"""The mathematics of training: pure functions, tensors in, tensors out."""
