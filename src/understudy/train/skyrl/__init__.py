"""Training by SkyRL's trainer on Ray, with understudy's tasks, rollouts and rewards. See docs/cluster.md."""
