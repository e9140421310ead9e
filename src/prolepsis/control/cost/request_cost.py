"""What one finished request cost, and what it is compared by."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.control.verdicts.arms import Arm
from prolepsis.core.device_seconds import DeviceSeconds

Dimension = Literal["route", "tenant", "proposer"]
DIMENSIONS: tuple[Dimension, ...] = ("route", "tenant", "proposer")
NO_PROPOSER = "none"
"""Of requests without a verified draft."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A stage of a rollout, in which requests go to the canary with one probability, by chance."""

    rollout_id: str
    run: int
    stage: int
    share: float
    """That probability, between 0 and 1."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """A request that an engine decoded."""

    route: str
    tenant: str
    proposer: str
    """That most of its accepted tokens came from; known only afterwards, so nothing is randomised by it."""
    num_output_tokens: int
    device: DeviceSeconds
    contest: Contest | None = None
    """None: it is no part of a comparison."""
    arm: Arm = "control"

    def value(self, dimension: Dimension) -> str:
        return {"route": self.route, "tenant": self.tenant, "proposer": self.proposer}[dimension]
