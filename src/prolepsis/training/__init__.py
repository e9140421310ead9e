"""Training of draft heads, their levels, and draft models, on text that the target writes."""
