"""CPU path of the local engine: fused kernels, chunked attention, memory settings."""
