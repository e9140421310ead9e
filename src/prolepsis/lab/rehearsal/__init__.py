"""Rehearsal: a trace of requests through admission, policy and engine, on a virtual clock."""
