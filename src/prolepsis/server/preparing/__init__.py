"""From the body of a request to tokens, grammar and limits for the engine."""
