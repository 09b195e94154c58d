"""Sources of tasks and episodes beside the shipped domains: MCP servers, files, benchmarks, tool datasets, mixtures."""
