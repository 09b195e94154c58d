"""vLLM as the sampler of an engine: in a server process that the engine starts, on a running server, or inside this
process.
"""
