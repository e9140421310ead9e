"""The front door: who may come in, how much they may ask, who is next, and what gives way under load."""
