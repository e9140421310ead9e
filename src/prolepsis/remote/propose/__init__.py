"""The server's end of drafts from another process; the engine's, and the messages: `engine.drafting.remote`."""
