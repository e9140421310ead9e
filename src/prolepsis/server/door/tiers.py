"""Tiers of service: how large a share each gets, and at which rung of the ladder it gives way."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.server.door.ladder import BATCH_WAITS, LOW_REFUSED

TierName = Literal["premium", "standard", "economy", "batch"]


@dataclass(frozen=True, slots=True)
class Tier:
    name: TierName
    weight: float
    """Share of the engine against other tiers that have work waiting."""
    waits_from: int | None = None
    """Rung from which its requests stay in the queue."""
    refused_from: int | None = None
    """Rung from which its new requests are refused."""


TIERS: dict[str, Tier] = {
    "premium": Tier("premium", 4.0),
    "standard": Tier("standard", 2.0),
    "economy": Tier("economy", 1.0, refused_from=LOW_REFUSED),
    "batch": Tier("batch", 1.0, waits_from=BATCH_WAITS, refused_from=LOW_REFUSED),
}
DEFAULT_TIER: TierName = "standard"
