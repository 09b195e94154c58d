"""One episode as the viewer shows it: messages, state changes, tokens, log-probabilities, advantages."""
