"""Training: the loop and its phases, certification, planning, and SkyRL's trainer.

It may import the packages `core` to `data`. Most modules import torch; this one and `planning` do not.
"""
