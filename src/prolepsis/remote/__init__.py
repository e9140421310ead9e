"""Other processes: the codec of all messages, the handshake of all connections, and what is built on them."""
