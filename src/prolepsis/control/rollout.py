"""How a rule is rolled out, and what its rollout is watched by, as a policy file says it."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.control.metrics import METRICS, Metric
from prolepsis.control.rollouts.settings import RolloutSettings, ladder
from prolepsis.control.shape import Name, Number, Part, one_or_more
from prolepsis.control.verdicts.guardrail import Guardrail

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
    on_inconclusive: Literal["hold", "roll_back"] = "hold"

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
