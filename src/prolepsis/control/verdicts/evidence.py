"""What the finished requests of one stage showed: the recorded counters that a verdict is made of."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pydantic import TypeAdapter

from prolepsis.control.verdicts.arms import Arm, Arms
from prolepsis.control.verdicts.guardrail import Guardrail


@dataclass(frozen=True, slots=True)
class StageEvidence:
    """Arms by guardrail name; evidence of replicas about one stage is added."""

    rollout_id: str
    stage: int
    arms: Mapping[str, Arms] = field(default_factory=dict)
    num_canary: int = 0
    num_control: int = 0
    """Requests of the stage that finished, by arm, whatever was measured of them."""
    consecutive_errors: int = 0
    """Requests with a measurement that failed since the last without; of the replica that has most."""
    run: int = 0
    """Which start of the rollout the stage belongs to."""

    def belongs_to(self, rollout_id: str, run: int, stage: int) -> bool:
        return (self.rollout_id, self.run, self.stage) == (rollout_id, run, stage)

    def observe(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with one more finished request, given its values by metric.

        A metric that does not apply to the request is left out; NaN says that measuring it failed.
        """
        arms = dict(self.arms)
        for guardrail in guardrails:
            value = values.get(guardrail.metric)
            if value is not None and not math.isnan(value) and guardrail.measure.ready:
                arms[guardrail.name] = guardrail.observe(arms.get(guardrail.name, guardrail.empty()), arm, value)
        failed = any(math.isnan(value) for value in values.values())
        return replace(
            self,
            arms=arms,
            num_canary=self.num_canary + (arm == "canary"),
            num_control=self.num_control + (arm == "control"),
            consecutive_errors=self.consecutive_errors + 1 if failed else 0,
        )

    def observe_more(self, guardrails: Sequence[Guardrail], arm: Arm, values: Mapping[str, float]) -> Self:
        """Return the evidence with what was measured later of a request that is counted already."""
        more = self.observe(guardrails, arm, values)
        return replace(self, arms=more.arms)

    def __add__(self, other: Self) -> Self:
        assert other.belongs_to(self.rollout_id, self.run, self.stage), "evidence of one stage is added"
        merged = dict(self.arms)
        for name, arms in other.arms.items():
            merged[name] = merged[name] + arms if name in merged else arms
        return replace(
            self,
            arms=merged,
            num_canary=self.num_canary + other.num_canary,
            num_control=self.num_control + other.num_control,
            consecutive_errors=max(self.consecutive_errors, other.consecutive_errors),
        )

    def to_json(self) -> bytes:
        return _EVIDENCE.dump_json(self)

    @staticmethod
    def from_json(text: bytes | str) -> "StageEvidence":
        """Return the stored evidence; raises pydantic's ValidationError where the text is not one."""
        return _EVIDENCE.validate_json(text)


_EVIDENCE = TypeAdapter(StageEvidence)
