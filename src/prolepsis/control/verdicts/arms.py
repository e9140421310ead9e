"""Two arms that are compared on one metric."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from prolepsis.control.verdicts.tally import Tally

Arm = Literal["canary", "control"]


@dataclass(frozen=True, slots=True)
class Arms:
    """What the requests of each arm showed on one guardrail since its stage began; arms of replicas are added."""

    canary: Tally
    control: Tally

    @classmethod
    def empty(cls, num_knots: int = 2) -> Self:
        return cls(Tally.empty(num_knots), Tally.empty(num_knots))

    def observe(self, arm: Arm, score: float) -> Self:
        """Return the arms with the score, in [0, 1], of one more finished request."""
        if arm == "canary":
            return replace(self, canary=self.canary.observe(score))
        return replace(self, control=self.control.observe(score))

    def __add__(self, other: Self) -> Self:
        return replace(self, canary=self.canary + other.canary, control=self.control + other.control)
