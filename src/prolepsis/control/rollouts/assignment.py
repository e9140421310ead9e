"""Which arm a request goes to: a function of its key, the same on every replica and after every restart."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.control.shares import position

Place = Literal["canary", "rest", "control"]
"""The rest runs as the control does until the rollout is on, then as the canary."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Shares of keys; the standing control is never moved, so there is something to compare with to the end."""

    canary: float
    control: float = 0.05

    def __post_init__(self) -> None:
        assert self.canary >= 0.0, "shares are in [0, 1]"
        assert self.control >= 0.0, "shares are in [0, 1]"
        assert self.canary + self.control <= 1.0 + 1e-9, "shares are together at most 1"


def arm_of(key: str, rollout_id: str, weights: Weights) -> Place:
    """Return the arm of all requests with `key`.

    The canary grows from below and the control stands at the top, so a key that is on the canary at 1 % stays on it at
    5 %. Another rollout deals anew. The rest is compared as control. Verdicts are exact with one key for each request;
    with one for each conversation they are wrong somewhat more often, and with one for each tenant they do not hold.
    """
    place = position(rollout_id, key) / 100.0
    if place < weights.canary:
        return "canary"
    return "control" if place >= 1.0 - weights.control else "rest"
