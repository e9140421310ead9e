"""Engines of others over HTTP: a pool that speculates and a pool that does not, seen as one engine."""
