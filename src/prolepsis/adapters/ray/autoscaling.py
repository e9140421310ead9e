"""How many replicas serve: by the samples in flight, and by how long requests wait at the front ends.

`policy` is an autoscaling policy of Ray Serve, which calls it in its controller and applies bounds and delays.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prolepsis.core.config import ServerConfig

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

POLICY = "prolepsis.adapters.ray.autoscaling:policy"
IN_FLIGHT, WAITING, QUEUE_AGE_S = "samples_in_flight", "requests_waiting", "queue_age_s"
"""Figures of a replica: samples that run or wait in it, and the demand of all front ends."""
LONGEST_WAIT_S = 1.0
"""A request that waits longer calls for another replica; load shedding begins at two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Bounds and pace of the number of replicas."""

    least: int = 1
    most: int = 1
    samples_per_replica: int = 32  # samples in flight that each replica is to have
    grow_after_s: float = 5.0  # A larger number is wanted for so long before it is obeyed
    shrink_after_s: float = 300.0  # likewise a smaller one: to start a replica costs more than to keep it

    @classmethod
    def of(cls, config: ServerConfig) -> "Scaling":
        most = config.max_replicas or config.replicas
        return cls(least=config.replicas, most=most, samples_per_replica=config.limits.samples_per_replica)

    @property
    def is_fixed(self) -> bool:
        return self.least == self.most


def wanted_replicas(num_replicas: int, figures: Mapping[str, Collection[float]], samples_per_replica: float) -> int:
    """Return how many replicas are wanted where there are `num_replicas`; `figures`: one a replica, by name.

    What waits is in the figures of each replica, as the front ends report it to all of them.
    """
    waiting = max(figures.get(WAITING, ()), default=0.0)
    by_load = math.ceil((sum(figures.get(IN_FLIGHT, ())) + waiting) / samples_per_replica)
    waits_long = max(figures.get(QUEUE_AGE_S, ()), default=0.0) > LONGEST_WAIT_S
    return max(by_load, num_replicas + 1 if waits_long else 1)


def policy(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Return the number of replicas that is wanted, and no state of its own."""
    figures = {name: list(by_replica.values()) for name, by_replica in (context.aggregated_metrics or {}).items()}
    target = context.config.target_ongoing_requests
    return wanted_replicas(context.current_num_replicas, figures, target), {}
