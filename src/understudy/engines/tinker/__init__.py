"""A server of the Tinker API, SkyRL's or a hosted one: weights that are sampled from, read and moved elsewhere."""
