"""What servers that share a store know of each other: who is there, and what wakes them."""
