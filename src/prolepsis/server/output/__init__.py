"""Output policies: what may still be done to an answer between its verification and the client."""
