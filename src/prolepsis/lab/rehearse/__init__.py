"""Measures a machine, and forecasts what it would do with a trace."""
