"""Engines elsewhere: hosts and links of our own, servers of others, and clients and proposers in other processes."""
