"""Training: the loop, its two phases, and what they share."""

from understudy.train.loop import train
from understudy.train.metrics import learning_rate, summarize
from understudy.train.reinforcement import optimizer_steps, with_advantages
from understudy.train.state import Report, Training

__all__ = ["Report", "Training", "learning_rate", "optimizer_steps", "summarize", "train", "with_advantages"]
