"""understudy: reinforcement learning of tool use in multi-turn conversations."""

import os

__version__ = "0.1.0"

# Threads of torch's OpenMP that wait for each other spin for milliseconds by default. Where anything else runs on the
# same cores, that makes a decoding step ten times slower; it has to be set before torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "2000")
