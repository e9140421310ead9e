"""Drift: a proposer that fares worse than it did, slowly (drift) or all at once (a cliff)."""
