"""A chat completions server over an engine and a chat format: the conversation that is served is the one trained on."""
