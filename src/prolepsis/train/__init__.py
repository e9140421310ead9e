"""Training of draft heads from the target's own text."""
