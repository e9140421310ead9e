"""How a rule is rolled out, and what its rollout is watched by. Steps and bounds only; nothing here acts on them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from prolepsis.control.conditions import Range
from prolepsis.control.shape import Name, Number, Part, one_or_more

Percent = Annotated[Number, Field(ge=0, le=100)]
Gate = Literal["manual", "automatic"]

Metric = Literal[
    "acceptance_rate",
    "acceptance_length",
    "correction_rate",
    "error_rate",
    "structured_validity",
    "time_to_first_token_p95_ms",
    "time_to_first_token_p99_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "speedup",
]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a metric is, and between which values it lies."""

    text: str
    lowest: float = 0.0
    highest: float | None = None


METRICS: dict[Metric, Meaning] = {
    "acceptance_rate": Meaning("accepted / drafted tokens", 0.0, 1.0),
    "acceptance_length": Meaning("tokens a pass emits", 1.0),
    "correction_rate": Meaning("drafts whose first token was rejected / drafts", 0.0, 1.0),
    "error_rate": Meaning("requests that failed / requests", 0.0, 1.0),
    "structured_validity": Meaning("answers of the form asked for / answers with a form", 0.0, 1.0),
    "time_to_first_token_p95_ms": Meaning("95th percentile of the time to the first token"),
    "time_to_first_token_p99_ms": Meaning("99th percentile of the time to the first token"),
    "itl_p95_ms": Meaning("95th percentile of the time between tokens"),
    "itl_p99_ms": Meaning("99th percentile of the time between tokens"),
    "latency_p95_ms": Meaning("95th percentile of the time of a request"),
    "latency_p99_ms": Meaning("99th percentile of the time of a request"),
    "speedup": Meaning("tokens per second against the control share"),
}


class Guardrail(Part):
    """A bound on a metric of the requests a rule matches."""

    name: Name
    metric: Metric
    threshold_range: Range
    """Values that are fine."""
    dry_run: bool = False
    """Measured and reported, never decisive."""


class Rollout(Part):
    """Shares of the matched requests that get the rule's mode, step by step; the others are decoded plainly."""

    step_weights: Annotated[tuple[Percent, ...], BeforeValidator(one_or_more), Field(min_length=1)]
    """Percent of the requests, one value a step."""
    min_samples: Annotated[int, Field(ge=1)] = 500
    """Requests a step needs before it is judged; with fewer its verdict is inconclusive."""
    gate: Gate = "manual"
    """Who promotes to the next step: an operator, or the guardrails."""
    control_weight: Annotated[Number, Field(ge=0, le=50)] = 5.0
    """Percent that stay plain throughout, to compare with."""
