"""What guardrails may ask: the metrics a server measures of finished requests, by the names policies use."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.control.verdicts.means import FINE, HEADROOM, Better, Difference, Limit, Ratio
from prolepsis.control.verdicts.quantiles import QuantileLimit, QuantileRatio

Value = Literal[
    "acceptance",
    "acceptance_length",
    "error",
    "validity",
    "first_token_ms",
    "latency_per_token_ms",
    "latency_ms",
    "correctness",
    "device_ms_per_token",
]
"""What one finished request shows; one that does not apply to a request is left out."""

Metric = Literal[
    "acceptance_rate",
    "acceptance_length",
    "error_rate",
    "structured_validity",
    "time_to_first_token_p95_ms",
    "latency_per_token_p50_ms",
    "latency_per_token_p95_ms",
    "latency_p95_ms",
    "correctness",
    "cost_per_token",
]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a metric is, and how it is tested."""

    text: str
    value: Value
    better: Better = "lower"
    level: float | None = None
    """The quantile that it is; None: a mean."""
    is_rate: bool = False
    """It is a mean of values in [0, 1]; else values may be of any size."""
    lowest: float = 0.0
    """No value is below; a limit has to be above."""
    has_control: bool = True
    """Requests that are decoded plainly have it too, so it can be compared."""

    @property
    def highest(self) -> float:
        return 1.0 if self.is_rate else float("inf")

    def compared(self, margin: float) -> Difference | Ratio | QuantileRatio:
        """Return the test against the control."""
        assert self.has_control, "plain requests have the metric"
        if self.level is not None:
            return QuantileRatio(level=self.level, margin=margin)
        return Difference(margin=margin) if self.is_rate else Ratio(margin=margin)

    def limited(self, limit: float) -> Limit | QuantileLimit:
        """Return the test of the canary alone."""
        if self.level is not None:
            return QuantileLimit(level=self.level, limit=limit)
        if not self.is_rate:
            high = self.lowest + HEADROOM * (limit - self.lowest)
            return Limit(limit=limit, low=self.lowest, high=high, num_knots=FINE)
        return Limit(limit=limit, num_knots=FINE if self.value == "acceptance" else 2)


METRICS: dict[Metric, Meaning] = {
    "acceptance_rate": Meaning("accepted / drafted tokens", "acceptance", "higher", is_rate=True, has_control=False),
    "acceptance_length": Meaning(
        "output tokens / passes of the target", "acceptance_length", "higher", lowest=1.0, has_control=False
    ),
    "error_rate": Meaning("requests that failed / requests", "error", is_rate=True),
    "structured_validity": Meaning(
        "answers of the form asked for / answers with a form", "validity", "higher", is_rate=True
    ),
    "time_to_first_token_p95_ms": Meaning(
        "95th percentile of the time to the first token", "first_token_ms", level=0.95
    ),
    "latency_per_token_p50_ms": Meaning("median of a request's time between tokens", "latency_per_token_ms", level=0.5),
    "latency_per_token_p95_ms": Meaning(
        "95th percentile of a request's time between tokens", "latency_per_token_ms", level=0.95
    ),
    "latency_p95_ms": Meaning("95th percentile of the time of a request", "latency_ms", level=0.95),
    "correctness": Meaning(
        "requests with the tokens of plain decoding / requests replayed", "correctness", "higher", is_rate=True
    ),
    "cost_per_token": Meaning("mean of a request's device milliseconds / output tokens", "device_ms_per_token"),
}
