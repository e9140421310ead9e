"""Faults of drills in an engine: what each costs, and that nothing is left of it when it is taken back."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.messages import EngineFault, InjectFault
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.step import Engine
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, build, outputs, reference, request, run, true_continuation

PROMPT = (3, 4, 5)


def right(name: str) -> Scripted:
    """Return a proposer that drafts what the target will say."""

    def draft(sequence: SequenceView, limit: int) -> Draft | None:
        return chain(tuple(true_continuation(sequence, min(limit, 3))), name)

    return Scripted(draft, name)


@dataclass
class Faulty:
    """An engine with a fault."""

    fault: EngineFault
    proposer: str = DRAFT_HEAD
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = build(EngineSetup(proposers=(right(self.proposer),)))
        self.engine.send(InjectFault(self.fault))

    def answer(self, name: str, *, may_contain: bool = False) -> list[int]:
        [tokens] = outputs(run(self.engine, request(name, PROMPT), may_contain=may_contain)).values()
        return tokens

    @property
    def num_accepted(self) -> int:
        return self.engine.speculation.proposers.counts[self.proposer].num_accepted


EXPECTED = reference(request("plain", PROMPT), 0)


@pytest.mark.parametrize("fault", ["raise", "damage"])
def test_a_faulty_proposer_costs_drafts_and_no_token(fault: EngineFault) -> None:
    faulty = Faulty(fault)
    assert faulty.answer("a") == EXPECTED
    assert faulty.num_accepted == 0
    faulty.engine.send(InjectFault("none"))
    assert faulty.answer("b") == EXPECTED
    assert faulty.num_accepted > 0


def test_only_heads_are_damaged() -> None:
    faulty = Faulty("damage", "suffix")
    assert faulty.answer("a") == EXPECTED
    assert faulty.num_accepted > 0


def test_a_planted_difference_is_in_the_answer_until_it_is_taken_back() -> None:
    faulty = Faulty("differ")
    assert faulty.answer("a") != EXPECTED
    faulty.engine.send(InjectFault("none"))
    assert faulty.answer("b") == EXPECTED


def test_a_call_that_hangs_comes_back_when_the_fault_is_taken_back() -> None:
    engine = Faulty("hang").engine
    engine.step()
    [proposer] = engine.speculation.proposers.contained
    assert proposer.fault is not None
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(proposer.fault, [None])
        with pytest.raises(TimeoutError):
            call.result(0.01)
        engine.send(InjectFault("none"))
        engine.step()
        assert call.result(20) == [None]
    assert engine.speculation.proposers.contained[0].fault is None


def test_costly_proposers_do_not_hang() -> None:
    """The step waits for some of them."""
    proposer = right(DRAFT_HEAD)
    proposer.free = False
    engine = build(EngineSetup(proposers=(proposer,)))
    engine.send(InjectFault("hang"))
    [answer] = outputs(run(engine, request("a", PROMPT))).values()
    assert answer == EXPECTED


def test_an_engine_that_is_to_die_ends_its_thread() -> None:
    engine = Faulty("die").engine
    with pytest.raises(SystemExit, match="a drill"):
        engine.step()
