"""The stages of a rollout, and the settings that hold for all of them; made from a rule's terms."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from prolepsis.control.policy.model import Terms
from prolepsis.control.policy.rollout_terms import METRICS, GuardrailTerms, OnHarm, TrialTerms
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage lasts at least `minimum_s` of time not paused; after `maximum_s` of it without a judgement it is held."""

    name: str
    share: float
    """Share of requests in the canary, in (0, 1); in shadow, share of requests that draft for comparison."""
    guardrails: tuple[Guardrail, ...]
    kind: Literal["shadow", "canary"] = "canary"
    minimum_s: float = 60.0
    maximum_s: float = 86400.0
    manual_gate: bool = False  # an operator has to approve before the rollout continues from here

    def __post_init__(self) -> None:
        one_arm = not any(g.measure.has_control for g in self.guardrails)
        assert self.kind == "canary" or one_arm, "in shadow there is one arm: only limits can be judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    stages: tuple[Stage, ...]
    holdout: float = 0.05  # share of keys that never get the canary, for comparison to the end
    on_inconclusive: Literal["hold", "rollback"] = "hold"
    on_harm: OnHarm = "plain"

    def __post_init__(self) -> None:
        shares = [stage.share for stage in self.stages if stage.kind == "canary"]
        assert self.stages, "a rollout has a stage"
        assert shares == sorted(shares), "the canary only grows"
        most = 1.0 - self.holdout + 1e-9  # of decimal percentages
        assert all(0.0 < share <= most for share in shares), "the holdout stays"

    @property
    def levels(self) -> Levels:
        return Levels(num_stages=len(self.stages))


def settings_of(terms: Terms) -> RolloutSettings:
    """Return the settings of a rule that is rolled out: a shadow stage if acceptance can decide, then the others.

    A trial has the shadow stage beside a control that drafts. Its limit on acceptance is for the candidate alone, so
    later, beside other proposers, it decides nothing.
    """
    rollout = terms.rollout
    assert rollout is not None, "the rule is rolled out"
    guardrails = tuple(guardrail_of(guardrail, rollout.min_samples) for guardrail in terms.guardrails)
    in_shadow = tuple(guardrail for guardrail in guardrails if guardrail.metric == "acceptance")
    share = min(terms.shadow_percentage, 100.0 - rollout.holdout) / 100.0
    is_trial = isinstance(rollout, TrialTerms)
    has_shadow = rollout.against is None or is_trial
    decides = share > 0.0 and has_shadow and any(not guardrail.dry_run for guardrail in in_shadow)
    return RolloutSettings(
        stages=stages(
            tuple(replace(g, dry_run=g.dry_run or (is_trial and g in in_shadow)) for g in guardrails),
            shares=[percent / 100.0 for percent in rollout.stages],
            shadow_guardrails=in_shadow if decides else (),
            shadow_share=share,
            manual_gate=rollout.gate == "manual",
            minimum_s=rollout.min_stage_s,
            maximum_s=rollout.max_stage_s,
        ),
        holdout=rollout.holdout / 100.0,
        on_inconclusive=rollout.on_inconclusive,
        on_harm=rollout.on_harm,
    )


def guardrail_of(terms: GuardrailTerms, minimum_samples: int) -> Guardrail:
    """Return the guardrail as judgements use it."""
    metric = METRICS[terms.metric]
    margin = terms.margin if terms.gain is None else -terms.gain
    return Guardrail(
        name=terms.name,
        metric=metric.value,
        measure=metric.compared(margin) if margin is not None else metric.limited(terms.limit or 0.0),
        better=metric.better,
        minimum_samples=minimum_samples,
        dry_run=terms.dry_run,
    )


def stages(
    guardrails: tuple[Guardrail, ...],
    *,
    shares: Sequence[float] = (0.01, 0.05, 0.25, 0.5),
    shadow_guardrails: tuple[Guardrail, ...] = (),
    shadow_share: float = 0.95,
    manual_gate: bool = False,
    minimum_s: float = 60.0,
    maximum_s: float = 86400.0,
) -> tuple[Stage, ...]:
    """Return canary stages with the same guardrails, after a shadow stage if that has guardrails to decide by."""

    stage = partial(Stage, minimum_s=minimum_s, maximum_s=maximum_s, manual_gate=manual_gate)
    canary = tuple(stage(name=f"canary {100 * share:g}%", share=share, guardrails=guardrails) for share in shares)
    if not shadow_guardrails:
        return canary
    return (stage(name="shadow", kind="shadow", share=shadow_share, guardrails=shadow_guardrails), *canary)
