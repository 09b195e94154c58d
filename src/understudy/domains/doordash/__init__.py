"""Food delivery: a support desk where orders are placed, changed, cancelled, tracked, and put right when they went wrong."""
