"""The audit log: entries chained by digests, redacted before they are stored, erasable without breaking the chain."""
