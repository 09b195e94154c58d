"""vLLM as the sampler of an engine: a server process, a server that runs already, or inside this process."""
