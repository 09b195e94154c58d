"""The phases of a run: SFT, preferences and RL."""
