"""A server of the Tinker API, SkyRL's or a hosted one, which holds the weights, samples and trains."""
