"""Learns from the traffic of those who agreed: capture, runs, trials, and the way back."""
