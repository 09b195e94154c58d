"""SkyRL's own trainer on Ray, with our tasks, rollouts and rewards in it; see docs/cluster.md."""
