"""What requests report under load shedding: the plan of the level, as the engine saw it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.core.stats import EffectiveMode
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.server.admission.load_shedding import plan_at
from tests.fakes import EngineSetup, build, draft_chain, request, run, terminals

PARAMS = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)


class Right(Proposer):
    """Proposes what the target will say."""

    name = "scripted"

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [
            draft_chain(s, limit, wrong_from=limit) if limit else None
            for s, limit in zip(sequences, limits, strict=True)
        ]


@pytest.mark.parametrize(
    ("level", "mode", "reason"),
    [
        (0, "on", "speculating"),
        (1, "on", "overload_shallow"),
        (2, "off", "overload_plain"),
        (3, "off", "overload_batch_waits"),
        (4, "off", "overload_low_refused"),
    ],
)
def test_each_rung_is_the_reason_of_the_mode_in_effect(level: int, mode: str, reason: str) -> None:
    engine = build(EngineSetup(proposers=(Right(),)))
    engine.send(ApplyPlan(plan_at(level, SpecPlan(fixed_depth=8), version=3)))
    stats = terminals(run(engine, request("r", [5, 6, 7] * 6, PARAMS)))["r"].stats
    assert stats.mode == EffectiveMode(mode, reason, 3)  # type: ignore[arg-type]
    depth = max((len(counts.per_position) for counts in stats.proposers.values()), default=0)
    assert depth <= (8, 6, 0, 0, 0)[level]


def test_the_reason_requested_off_holds_under_load_too() -> None:
    engine = build(EngineSetup(proposers=(Right(),)))
    engine.send(ApplyPlan(plan_at(2, SpecPlan(), version=1)))
    source = replace(request("r", [5, 6, 7] * 6, PARAMS), speculation=SpeculationChoice("off"))
    assert terminals(run(engine, source))["r"].stats.mode.reason == "requested_off"
