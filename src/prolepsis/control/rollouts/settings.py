"""How a rollout proceeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prolepsis.control.verdicts.guardrail import Guardrail
from prolepsis.control.verdicts.judge import Levels
from prolepsis.control.verdicts.means import Limit
from prolepsis.control.verdicts.quantiles import QuantileLimit


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
    on_inconclusive: Literal["hold", "roll_back"] = "hold"
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
