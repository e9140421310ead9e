"""Rollouts and their guardrails as a policy file describes them, and the metrics that guardrails may name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.control.statistics.means import FINE, HEADROOM, Better, Limit, MeanDifference, Ratio
from prolepsis.control.statistics.quantiles import QuantileLimit, QuantileRatio
from prolepsis.core.facts import RequestFacts
from prolepsis.core.validation import Name, Number, Part, one_or_more, spelt

Value = Literal[
    "acceptance",
    "acceptance_length",
    "error",
    "validity",
    "tool_calls",
    "first_token_ms",
    "latency_per_token_ms",
    "latency_ms",
    "correctness",
    "device_ms_per_token",
]
"""A value of one finished request; a value that does not apply to the request is absent."""

Metric = Literal[
    "acceptance_rate",
    "acceptance_length",
    "error_rate",
    "structured_validity",
    "tool_call_success",
    "time_to_first_token_p95_ms",
    "time_to_first_token_p99_ms",
    "latency_per_token_p50_ms",
    "latency_per_token_p95_ms",
    "latency_per_token_p99_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "correctness",
    "cost_per_token",
]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    text: str
    value: Value
    better: Better = "lower"
    level: float | None = None  # the level of a quantile; None: the metric is a mean
    is_rate: bool = False  # the metric is a mean of values in [0, 1]; other values may be of any size
    lowest: float = 0.0  # no value is below it; a limit has to be above it
    has_control: bool = True  # plain requests have the metric too, so the canary can be compared with them
    compares_drafts: bool = False  # the canary can be compared with a control that drafts

    @property
    def highest(self) -> float:
        return 1.0 if self.is_rate else float("inf")

    @property
    def is_amount(self) -> bool:
        """Whether the metric is a mean of values of any size, of which a canary may be asked for a gain."""
        return self.level is None and not self.is_rate

    def compared(self, margin: float) -> MeanDifference | Ratio | QuantileRatio:
        """Return the test against the control; a negative margin, of an amount, asks for a gain."""
        assert self.has_control or self.compares_drafts, "the control has the metric"
        if self.level is not None:
            return QuantileRatio(level=self.level, margin=margin)
        return MeanDifference(margin=margin) if self.is_rate else Ratio(margin=margin)

    def limited(self, limit: float) -> Limit | QuantileLimit:
        """Return the test of the canary alone."""
        if self.level is not None:
            return QuantileLimit(level=self.level, limit=limit)
        if not self.is_rate:
            high = self.lowest + HEADROOM * (limit - self.lowest)
            return Limit(limit=limit, low=self.lowest, high=high, num_points=FINE)
        return Limit(limit=limit, num_points=FINE if self.value == "acceptance" else 2)


METRICS: dict[Metric, MetricInfo] = {
    "acceptance_rate": MetricInfo("accepted / drafted tokens", "acceptance", "higher", is_rate=True, has_control=False),
    "acceptance_length": MetricInfo(
        "output tokens / passes of the target",
        "acceptance_length",
        "higher",
        lowest=1.0,
        has_control=False,
        compares_drafts=True,
    ),
    "error_rate": MetricInfo("requests that failed / requests", "error", is_rate=True),
    "structured_validity": MetricInfo(
        "answers of the requested form / answers with a requested form", "validity", "higher", is_rate=True
    ),
    "tool_call_success": MetricInfo(
        "answers whose tool calls are all whole / answers with a tool call", "tool_calls", "higher", is_rate=True
    ),
    "time_to_first_token_p95_ms": MetricInfo(
        "95th percentile of the time to the first token", "first_token_ms", level=0.95
    ),
    "time_to_first_token_p99_ms": MetricInfo(
        "99th percentile of the time to the first token", "first_token_ms", level=0.99
    ),
    "latency_per_token_p50_ms": MetricInfo(
        "median of a request's time between tokens", "latency_per_token_ms", level=0.5
    ),
    "latency_per_token_p95_ms": MetricInfo(
        "95th percentile of a request's time between tokens", "latency_per_token_ms", level=0.95
    ),
    "latency_per_token_p99_ms": MetricInfo(
        "99th percentile of a request's time between tokens", "latency_per_token_ms", level=0.99
    ),
    "latency_p95_ms": MetricInfo("95th percentile of the time of a request", "latency_ms", level=0.95),
    "latency_p99_ms": MetricInfo("99th percentile of the time of a request", "latency_ms", level=0.99),
    "correctness": MetricInfo(
        "requests with the tokens of plain decoding / requests replayed", "correctness", "higher", is_rate=True
    ),
    "cost_per_token": MetricInfo("mean of a request's device milliseconds / output tokens", "device_ms_per_token"),
}

Percent = Annotated[Number, Field(ge=0, le=100)]
Stages = Annotated[tuple[Percent, ...], BeforeValidator(one_or_more), Field(min_length=1)]
Gate = Literal["manual", "automatic"]
OnHarm = Literal["plain", "last_stage"]


class GuardrailTerms(Part):
    """A bound on a metric of the requests that a rollout gives the rule's mode: a margin, a limit or a gain."""

    name: Name
    metric: Metric
    margin: Annotated[Number, Field(gt=0)] | None = None
    """Allowed difference from the control: absolute for rates, a share of the control's value for times and costs."""
    limit: Annotated[Number, Field(gt=0)] | None = None
    """A fixed bound: the metric has to stay above it if higher is better, else below it."""
    gain: Annotated[Number, Field(gt=0, lt=1)] | None = None
    """How much better than the control it has to be, as a share of the control's value; to pass it surely is."""
    dry_run: bool = False  # measured and reported, never decisive

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.margin, self.limit, self.gain].count(None) != 2:
            raise ValueError("allowed: exactly one of margin, limit, gain")
        return self


GUARDRAILS = (
    {"name": "latency", "metric": "latency_p95_ms", "margin": 0.1},
    {"name": "errors", "metric": "error_rate", "margin": 0.01},
)
"""Of rules that a command writes and a person has not guarded."""


class HeaderKey(Part):
    """A header whose value names what belongs together, such as a conversation."""

    header: Annotated[str, spelt(r"[a-z0-9-]{1,64}", "the name of a header, in lower case")]


AssignBy = Literal["request", "tenant", "key"] | HeaderKey


class AgainstTerms(Part):
    """Terms of the control in place of plain decoding; terms that are left out are the rule's."""

    proposers: Annotated[tuple[str, ...], BeforeValidator(one_or_more), Field(min_length=1)] | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1)] | None = None
    emit: Literal["block", "token"] = "block"

    @model_validator(mode="after")
    def _given(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"allowed: one or more of {', '.join(type(self).model_fields)}")
        return self

    @property
    def changes(self) -> Mapping[str, object]:
        """The terms that are given, by name."""
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


class RolloutTerms(Part):
    """Shares of the matched requests that get the rule's mode, stage by stage; the others are decoded plainly."""

    stages: Stages = (1, 5, 25, 50)
    """Percent of the requests, one value a stage; after the last one all but the holdout get the rule's mode."""
    holdout: Annotated[Number, Field(ge=0, le=50)] = 5.0
    """Percent of the requests that stay plain throughout, for comparison."""
    min_samples: Annotated[int, Field(ge=1)] = 20  # requests that each arm needs before anything is decided
    min_stage_s: Annotated[Number, Field(ge=0)] = 60.0
    max_stage_s: Annotated[Number, Field(gt=0)] = 86400.0  # after this long without a judgement: `on_inconclusive`
    gate: Gate = "manual"
    """manual: an operator starts the rollout and approves each next stage; automatic: the guardrails do."""
    on_inconclusive: Literal["hold", "rollback"] = "hold"
    on_harm: OnHarm = "plain"
    """Once it is on: where harm takes it. last_stage: to the last stage, which it has to pass again."""
    assign_by: AssignBy = "request"
    """The unit that is assigned to an arm and counts as one observation. key: an API key, by its public part."""
    against: AgainstTerms | None = None
    """The terms of all requests but the canary's; None: they are decoded plainly."""

    @property
    def unit(self) -> str:
        """The unit of assignment and counting, in one word."""
        return self.assign_by if isinstance(self.assign_by, str) else self.assign_by.header

    def sticky_key(self, facts: RequestFacts) -> str | None:
        """Return the key that the request is assigned by; None: by itself, as is one that does not have the key."""
        if isinstance(self.assign_by, HeaderKey):
            value = facts.headers.get(self.assign_by.header, "")
            return f"{len(facts.tenant)}:{facts.tenant}:{value}" if value else None
        return {"request": None, "tenant": facts.tenant, "key": facts.key}[self.assign_by] or None


class TrialTerms(RolloutTerms):
    """The rollout of a head that the rule learnt. `learnt.with_trial` makes it, and no file can give it."""

    trial: str  # NAME@VERSION of the head: each has a rollout of its own
