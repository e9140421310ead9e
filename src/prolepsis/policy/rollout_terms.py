"""What guardrails may ask: the metrics a server measures of finished requests, by the names policies use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.core.validation import Name, Number, Part, one_or_more
from prolepsis.statistics.guardrail import Guardrail
from prolepsis.statistics.judge import Levels
from prolepsis.statistics.means import FINE, HEADROOM, Better, Difference, Limit, Ratio
from prolepsis.statistics.quantiles import QuantileLimit, QuantileRatio

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
            return Limit(limit=limit, low=self.lowest, high=high, num_points=FINE)
        return Limit(limit=limit, num_points=FINE if self.value == "acceptance" else 2)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage lasts at least `minimum_s` of time not paused; after `maximum_s` of it without a verdict it is held."""

    name: str
    share: float
    """Of requests that go to the canary, in (0, 1); in shadow, of requests that draft beside."""
    guardrails: tuple[Guardrail, ...]
    kind: Literal["shadow", "canary"] = "canary"
    minimum_s: float = 60.0
    maximum_s: float = 86400.0
    manual_gate: bool = False
    """Whether somebody has to approve before the rollout goes on from here."""

    def __post_init__(self) -> None:
        one_arm = all(isinstance(g.measure, Limit | QuantileLimit) for g in self.guardrails)
        assert self.kind == "canary" or one_arm, "in shadow there is one arm: only limits can be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    stages: tuple[Stage, ...]
    rollback_level: float = 0.05
    """Highest probability that a harmless canary is rolled back, over the whole rollout."""
    promotion_level: float = 0.05
    """Highest probability that a harmful canary is promoted."""
    standing_control: float = 0.05
    """Share of keys that never get the canary."""
    on_inconclusive: Literal["hold", "rollback"] = "hold"
    consecutive_error_limit: int = 5

    def __post_init__(self) -> None:
        shares = [stage.share for stage in self.stages if stage.kind == "canary"]
        assert self.stages, "a rollout has a stage"
        assert shares == sorted(shares), "the canary only grows"
        most = 1.0 - self.standing_control + 1e-9  # of decimal percentages
        assert all(0.0 < share <= most for share in shares), "the standing control is kept"

    @property
    def levels(self) -> Levels:
        return Levels(self.rollback_level, self.promotion_level, len(self.stages))


def ladder(
    guardrails: tuple[Guardrail, ...],
    *,
    shares: Sequence[float] = (0.01, 0.05, 0.25, 0.5),
    shadow_guardrails: tuple[Guardrail, ...] = (),
    shadow_share: float = 0.95,
    manual_gate: bool = False,
    minimum_s: float = 60.0,
    maximum_s: float = 86400.0,
) -> tuple[Stage, ...]:
    """Return canary stages with the same guardrails, after a shadow stage where that has some to decide by."""

    def stage(name: str, kind: Literal["shadow", "canary"], share: float, watched: tuple[Guardrail, ...]) -> Stage:
        return Stage(
            name=name,
            kind=kind,
            share=share,
            guardrails=watched,
            minimum_s=minimum_s,
            maximum_s=maximum_s,
            manual_gate=manual_gate,
        )

    canary = tuple(stage(f"canary {100 * share:g}%", "canary", share, guardrails) for share in shares)
    return (stage("shadow", "shadow", shadow_share, shadow_guardrails), *canary) if shadow_guardrails else canary


Percent = Annotated[Number, Field(ge=0, le=100)]
Gate = Literal["manual", "automatic"]


class GuardrailTerms(Part):
    """A bound on a metric of the requests that a rollout gives the rule's mode: by a margin, or by a limit."""

    name: Name
    metric: Metric
    margin: Annotated[Number, Field(gt=0)] | None = None
    """How much worse than the control it may be: absolute for rates, a share of the control's for times and costs."""
    limit: Annotated[Number, Field(gt=0)] | None = None
    """Where it has to stay, whatever the control does: above for what should be high, below for the rest."""
    dry_run: bool = False
    """Measured and reported, never decisive."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.margin is None) == (self.limit is None):
            raise ValueError("allowed: exactly one of margin, limit")
        return self

    def watched(self, minimum_samples: int) -> Guardrail:
        """Return it as verdicts take it."""
        meaning = METRICS[self.metric]
        return Guardrail(
            name=self.name,
            metric=meaning.value,
            measure=meaning.compared(self.margin) if self.margin is not None else meaning.limited(self.limit or 0.0),
            better=meaning.better,
            minimum_samples=minimum_samples,
            dry_run=self.dry_run,
        )


class RolloutTerms(Part):
    """Shares of the matched requests that get the rule's mode, step by step; the others are decoded plainly."""

    step_weights: Annotated[tuple[Percent, ...], BeforeValidator(one_or_more), Field(min_length=1)] = (1, 5, 25, 50)
    """Percent of the requests, one value a step; after the last all but the control get the rule's mode."""
    control_weight: Annotated[Number, Field(ge=0, le=50)] = 5.0
    """Percent that stay plain throughout, to compare with."""
    min_samples: Annotated[int, Field(ge=1)] = 20
    """Requests that each arm needs before anything is decided."""
    min_step_s: Annotated[Number, Field(ge=0)] = 60.0
    max_step_s: Annotated[Number, Field(gt=0)] = 86400.0
    """After this long without a verdict: `on_inconclusive`."""
    gate: Gate = "manual"
    """Who starts it and promotes to the next step: an operator, or the guardrails."""
    on_inconclusive: Literal["hold", "rollback"] = "hold"

    def settings(self, guardrails: Sequence[GuardrailTerms], shadow_percentage: float) -> RolloutSettings:
        """Return the stages: a shadow stage where acceptance can decide one, then the steps."""
        watched = tuple(g.watched(self.min_samples) for g in guardrails)
        in_shadow = tuple(g for g in watched if g.metric == "acceptance")
        share = min(shadow_percentage, 100.0 - self.control_weight) / 100.0
        decided = share > 0.0 and any(not g.dry_run for g in in_shadow)
        return RolloutSettings(
            stages=ladder(
                watched,
                shares=[weight / 100.0 for weight in self.step_weights],
                shadow_guardrails=in_shadow if decided else (),
                shadow_share=share,
                manual_gate=self.gate == "manual",
                minimum_s=self.min_step_s,
                maximum_s=self.max_step_s,
            ),
            standing_control=self.control_weight / 100.0,
            on_inconclusive=self.on_inconclusive,
        )
