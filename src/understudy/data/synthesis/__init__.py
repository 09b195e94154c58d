"""New tasks: from generators, from a language model, and from dependent specs."""
