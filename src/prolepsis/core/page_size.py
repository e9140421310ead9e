"""The size of a page, which kernels, prefix index and routers share."""

PAGE_SIZE = 32
"""Tokens of a page, in every forward: the contraction length of one AMX tile product over values."""
