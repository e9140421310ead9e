"""Breakers: a proposer that does harm to a slice of requests is left out there, and tried again later."""
