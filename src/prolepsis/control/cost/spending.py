"""Sums of what requests cost, by route, tenant and proposer, in memory that does not grow with them."""

from dataclasses import dataclass, field

from prolepsis.control.cost.request_cost import DIMENSIONS, Dimension, RequestCost
from prolepsis.core.device_seconds import DeviceSeconds

MOST_VALUES = 32
"""Values of a dimension that have sums of their own; what comes after them is `OTHER`."""
OTHER = "other"


@dataclass(slots=True)
class Spent:
    """Sums over requests."""

    num_requests: int = 0
    num_output_tokens: int = 0
    device: DeviceSeconds = field(default_factory=DeviceSeconds)

    def add(self, cost: RequestCost) -> None:
        self.num_requests += 1
        self.num_output_tokens += cost.num_output_tokens
        self.device.add(cost.device)

    @property
    def seconds_per_token(self) -> float | None:
        """Device seconds per output token: all of them over all of these."""
        return self.device.total / self.num_output_tokens if self.num_output_tokens else None

    @property
    def saved_s(self) -> float:
        """Device seconds that plain decoding had taken more, by the model's prediction; negative where it had not."""
        return self.device.predicted_plain - self.device.total


class Spending:
    """Since the server started."""

    def __init__(self) -> None:
        self.total = Spent()
        self.by: dict[Dimension, dict[str, Spent]] = {dimension: {} for dimension in DIMENSIONS}

    def observe(self, cost: RequestCost) -> None:
        self.total.add(cost)
        for dimension in DIMENSIONS:
            known, value = self.by[dimension], self.known(dimension, cost.value(dimension))
            known.setdefault(value, Spent()).add(cost)

    def known(self, dimension: Dimension, value: str) -> str:
        """Return the value it is summed under: its own, or `OTHER` where there are too many."""
        values = self.by[dimension]
        return value if value in values or len(values) < MOST_VALUES else OTHER
