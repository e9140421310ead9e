"""Secrets and personal data in texts, found by shape, check digits, cue words and lists of names."""
