"""Training conversations: read from and written for other trainers."""
