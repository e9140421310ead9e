"""Rollouts of a change in steps: states, gates, events, and the arm of a request."""
