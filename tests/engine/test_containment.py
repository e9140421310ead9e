"""Faults of the engine's own decisions and figures cost drafts or figures, never a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from prolepsis.core.events import Finished
from prolepsis.core.figures import Figure
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.accounting import charge
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.containment import LOG_EVERY_S, ContainedPart, Containment
from prolepsis.engine.drafting.cost import CostCurve, flat_cost
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.worth import StepCost
from prolepsis.engine.rows import Row
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from prolepsis.engine.timings import StepTiming
from tests.clock import Clock
from tests.engine.test_charging import decoding, device
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, build, draft_chain, outputs, reference, request, run, terminals

Verb = Literal["begin", "correction", "drops_states", "observe", "forget"]
SOURCE = request("a", [1, 2, 3])


class Failing(Payback):
    """Raises in one of its verbs, as a division by tokens that a step did not emit would, until it starts over."""

    def __init__(self, verb: Verb, *, mends: bool = True) -> None:
        self._verb, self._mends = verb, mends
        self._fails = False
        super().__init__()
        self._fails = True

    def start_over(self) -> None:
        super().start_over()
        self._fails = self._fails and not self._mends

    def _fail(self, verb: Verb) -> None:
        if self._fails and verb == self._verb:
            raise ZeroDivisionError("float division by zero")

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        self._fail("begin")
        return frozenset(keys)

    def correction(self, num_sequences: int):  # type: ignore[no-untyped-def]
        self._fail("correction")
        return super().correction(num_sequences)

    def drops_states(self, key: str) -> bool:
        self._fail("drops_states")
        return super().drops_states(key)

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        self._fail("observe")

    def forget(self, key: str) -> None:
        self._fail("forget")


def _engine(payback: Payback, metrics: Metrics | None = None) -> Engine:
    engine = build(EngineSetup(proposers=[Scripted(lambda s, n: draft_chain(s, n, wrong_from=2))], observer=metrics))
    proposers = engine.speculation.proposers
    engine.speculation = Speculation(proposers, max_step_tokens=64, max_model_len=256, payback=payback)
    return engine


@pytest.mark.parametrize("verb", ["begin", "correction", "drops_states", "observe", "forget"])
def test_deciding_or_learning_that_raises_costs_drafts_and_no_request(verb: Verb) -> None:
    metrics = Metrics()
    engine = _engine(Failing(verb, mends=False), metrics)
    events = run(engine, SOURCE, may_contain=True)
    assert outputs(events)["a", 0] == reference(SOURCE, noise_key(0, 0))
    [end] = terminals(events).values()
    assert isinstance(end, Finished)
    part: ContainedPart = "decisions" if verb in ("begin", "correction") else "learning"
    assert engine.contained.num_faults[part] > 0
    assert f'prolepsis_contained_faults_total{{kind="{part}"}} 0.0' not in metrics.exposition().decode()
    if part == "decisions":
        assert end.stats.mode.reason == "decision_failed"
        assert end.stats.plain_steps == {"decision_failed": end.stats.num_steps - 1}


class Unlearning(Speculation):
    """Learns nothing from steps."""

    def observe(self, rows: Sequence[Row], timing: StepTiming) -> None:
        raise ZeroDivisionError("float division by zero")


def test_chunk_limits_learn_where_learning_about_drafts_fails() -> None:
    chunks = ChunkLimit(40.0, flat_cost())
    engine = build(EngineSetup(chunks=chunks))
    engine.speculation = Unlearning(engine.speculation.proposers, max_step_tokens=64, max_model_len=256)
    before = chunks.token_ms(0)
    run(engine, request("a", [1] * 40), may_contain=True)
    assert engine.contained.num_faults["learning"] > 0
    assert chunks.token_ms(0) != before


def test_decisions_start_over_after_a_fault_so_that_one_state_does_not_stop_drafts_for_good() -> None:
    engine = _engine(Failing("begin"))
    [end] = terminals(run(engine, SOURCE, may_contain=True)).values()
    assert end.stats.plain_steps["decision_failed"] == 1
    assert end.stats.num_drafts > 0
    assert engine.contained.num_faults["decisions"] == 1


def test_a_request_that_was_not_to_draft_is_told_nothing_of_a_failed_decision() -> None:
    off = replace(request("b", [1]), speculation=SpeculationChoice("off"))
    ended = terminals(run(_engine(Failing("begin", mends=False)), SOURCE, off, may_contain=True))
    assert ended["b"].stats.plain_steps == {}
    assert ended["b"].stats.mode.reason == "requested_off"


class Broken(Metrics):
    """An observer that raises whatever it is told."""

    def observe(self, figure: Figure) -> None:
        raise ValueError("no figure")


def test_an_observer_that_raises_costs_figures_and_no_request() -> None:
    engine = build(EngineSetup(observer=Broken()))
    events = run(engine, SOURCE, request("b", [2]), may_contain=True)
    assert all(isinstance(end, Finished) for end in terminals(events).values())
    assert engine.dead is None
    assert engine.contained.num_faults["figures"] > 2


class Wild(CostCurve):
    """A curve that says anything."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__((1,), (0,), ((1.0,),))
        self._values = values

    def ms(self, num_tokens: int, num_context: int) -> float:
        return self._values[hash((num_tokens, num_context)) % len(self._values)]


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=5),
    rows=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 30)), min_size=1, max_size=130),
    phases=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
)
@example(values=[0.0, -1.7976931348623157e308, 0.0, 9.9792015476736e291, 0.0], rows=[(0, 0)] * 60, phases=[0.0] * 6)
@example(values=[-1e308, 1e308], rows=[(i, i % 30) for i in range(60)], phases=[1.0] * 6)
def test_charges_are_finite_and_never_below_0_whatever_the_curve_says(
    values: list[float], rows: list[tuple[int, int]], phases: list[float]
) -> None:
    made = [decoding(4 + context, nodes=size) for context, size in rows]
    step = StepTiming(0, 0, *phases)
    charge(made, step, Wild(values))
    paid = [device(row) for row in made]
    assert sum(one.total for one in paid) == pytest.approx(step.total)
    assert all(0.0 <= part < math.inf for one in paid for part in (*one.by_kind().values(), one.predicted_plain))


def test_a_fault_is_logged_once_in_a_minute_with_its_trace_and_the_number_in_between() -> None:
    clock = Clock()
    contained = Containment(clock)
    with capture_logs() as logs:
        for _ in range(5):
            with contained.of("decisions"):
                raise ZeroDivisionError
        clock.now += LOG_EVERY_S
        with contained.of("decisions"):
            raise ZeroDivisionError
        with contained.of("figures"):
            raise KeyError("a")
    assert [(one["part"], one["number"], type(one["exc_info"])) for one in logs] == [
        ("decisions", 1, ZeroDivisionError),
        ("decisions", 5, ZeroDivisionError),
        ("figures", 1, KeyError),
    ]
    assert contained.num_faults == {"decisions": 6, "learning": 0, "figures": 1}
