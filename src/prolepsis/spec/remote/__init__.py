"""Drafts from another process or machine: the protocol, its handshake, the engine's end and the server's."""
