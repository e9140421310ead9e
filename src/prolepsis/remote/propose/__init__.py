"""Drafts from another process: the messages, the engine's end with its proposer, and the server's end."""
