"""Sequential tests of two arms, valid at any time; the request is the unit."""
