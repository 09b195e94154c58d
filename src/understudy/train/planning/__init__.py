"""Planning of a run: memory, speed, duration, and preflight checks."""
