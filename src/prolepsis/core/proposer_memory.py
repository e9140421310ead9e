"""Memory that a proposer takes beside the target model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProposerMemory:
    """In bytes; what it shares with the target is not counted."""

    proposer: str
    weights: int = 0
    kv: int = 0
    """Keys and values of its own, allocated for good, and hidden states kept beside them."""
    index: int = 0
    """What it has learnt of texts: what it may grow to, where that is bounded."""

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.index
