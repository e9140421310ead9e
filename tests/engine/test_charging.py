"""What a step took is charged to its requests, and its rounds are kept."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.events import Event, Terminal
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.rounds import MAX_ROUNDS, Round
from prolepsis.core.stats import DeviceSeconds, RequestStats
from prolepsis.engine.accounting import charge
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.request import SequenceState, open_request
from prolepsis.engine.rows import Row
from prolepsis.engine.step import Engine
from prolepsis.engine.timings import StepTiming, Timings, timed
from tests.fake_proposer import Script, Scripted
from tests.fakes import EngineSetup, build, draft_chain, draft_tree, drain, request, run, submit, terminals

CURVE = CostCurve((1, 65), (0, 1024), ((10.0, 30.48), (74.0, 94.48)))
"""9 + rows + context / 50 milliseconds: whatever is charged can be worked out by hand."""


def sequence(prompt: int, output: int, *, emitted: int = 0, enabled: bool = True) -> SequenceState:
    """Return a sequence that had `output` tokens before the step and got `emitted` by it."""
    choice = SpeculationChoice("auto" if enabled else "off")
    source = GenerateRequest("r", tuple([1] * prompt), SamplingParams(), speculation=choice)
    [made] = open_request(source, 0.0, 0, (), None).sequences
    made.tokens += [1] * (output + emitted)
    return made


def decoding(context: int, *, nodes: int = 0, emitted: int = 1, enabled: bool = True) -> Row:
    made = sequence(1, context, emitted=emitted, enabled=enabled)
    draft = chain(tuple([1] * nodes), "suffix") if nodes else None
    return Row(made, context, 1, draft, None if draft or not enabled else "no_draft")


def device(row: Row) -> DeviceSeconds:
    return row.sequence.request.stats.device


def test_a_row_alone_pays_for_its_first_token_and_for_what_its_draft_added() -> None:
    row = decoding(256, nodes=3, emitted=3)
    charge(
        [row],
        StepTiming(forward=0.013, verify=0.002, propose=0.001, learn=0.0005, schedule=0.0001, commit=0.0002),
        CURVE,
    )
    paid = device(row)
    plain, drafts = 15.12, 3.0  # 9 + 1 + 256 / 50, and a millisecond a row
    assert paid.plain == pytest.approx(0.015 * plain / (plain + drafts))
    assert paid.verify == pytest.approx(0.015 * drafts / (plain + drafts))
    assert [paid.propose, paid.host] == pytest.approx([0.0015, 0.0003])
    assert paid.predicted_plain == pytest.approx(3 * (paid.plain + paid.host))


def test_rows_share_the_weights_and_pay_for_their_own_context_tokens_and_drafts() -> None:
    short, long, drafts = decoding(1), decoding(510), decoding(1, nodes=4, emitted=2)
    prompt = Row(sequence(9, 0), 0, 9)
    charge([short, long, drafts, prompt], StepTiming(forward=0.03524), CURVE)  # 9 + 4 + 12 + 512 / 50 ms: as predicted
    first, cached = 0.013 / 4, 0.01024 / 512
    assert device(short).total == pytest.approx(first + cached)
    assert device(long).total == pytest.approx(first + 510 * cached)
    assert [device(drafts).plain, device(drafts).verify] == pytest.approx([first + cached, 0.004])
    assert device(prompt).by_kind() == pytest.approx(
        {"prefill": first + 0.008, "plain": 0.0, "verify": 0.0, "propose": 0.0, "host": 0.0}
    )
    assert device(prompt).predicted_plain == pytest.approx(first + 0.008)


def test_a_row_that_was_not_asked_pays_for_no_drafts() -> None:
    drafts, spared, plain = decoding(1, nodes=1), decoding(1), decoding(1, enabled=False)
    spared = Row(spared.sequence, 1, 1, plain="too_costly")
    charge([drafts, spared, plain], StepTiming(forward=0.013, propose=0.008, learn=0.004), CURVE)
    assert [device(row).propose for row in (drafts, spared, plain)] == pytest.approx([0.010, 0.002, 0.0])


def test_plain_requests_are_predicted_to_cost_what_they_cost() -> None:
    rows = [decoding(context, enabled=False) for context in (1, 50, 400)]
    charge(rows, StepTiming(forward=0.02, verify=0.001, schedule=0.001), CURVE)
    for row in rows:
        assert device(row).predicted_plain == pytest.approx(device(row).total)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9000), st.integers(0, 30), st.sampled_from(["plain", "draft", "prompt", "spared"])),
        min_size=1,
        max_size=40,
    ),
    phases=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
)
def test_charges_add_up_to_the_measured_time(rows: list[tuple[int, int, str]], phases: list[float]) -> None:
    made: list[Row] = []
    for context, size, kind in rows:
        if kind == "prompt":
            made.append(Row(sequence(context + size + 1, 0), context, size + 1))
        elif kind == "spared":
            made.append(Row(sequence(5, 3), 7, 1, plain="backoff"))
        else:
            made.append(decoding(4 + context, nodes=size if kind == "draft" else 0, enabled=kind == "draft"))
    step = StepTiming(0, 0, *phases)
    charge(made, step, CURVE)
    paid = [device(row) for row in made]
    assert sum(one.total for one in paid) == pytest.approx(step.total)
    assert all(part >= 0.0 for one in paid for part in one.by_kind().values())


def mixed(draw: random.Random, number: int) -> GenerateRequest:
    choice = draw.choice(
        [
            SpeculationChoice(),
            SpeculationChoice("off"),
            SpeculationChoice("shadow"),
            SpeculationChoice(num_speculative_tokens=2),
        ]
    )
    params = SamplingParams(temperature=0.7, max_tokens=draw.randint(1, 40), seed=number)
    prompt = tuple(draw.randrange(20) for _ in range(draw.randint(1, 90)))
    n, priority = draw.choice([1, 1, 3]), draw.randrange(2)
    return GenerateRequest(f"r{number}", prompt, params, n=n, priority=priority, speculation=choice)


def served(engine: Engine, draw: random.Random) -> Iterator[Event]:
    for number in range(12):
        submit(engine, mixed(draw, number))
        for _ in range(draw.randrange(6)):
            yield from engine.step()
        if draw.random() < 0.2:
            engine.send(Abort(f"r{draw.randrange(number + 1)}"))
    yield from drain(engine)


def charged(seed: int) -> tuple[Engine, list[RequestStats]]:
    draw = random.Random(seed)
    setup = EngineSetup(
        num_pages=10, max_step_tokens=32, proposers=[Scripted(lambda s, n: draft_chain(s, n, wrong_from=2))]
    )
    engine = build(setup)
    engine.send(ApplyPlan(SpecPlan(fixed_depth=4)))
    return engine, [event.stats for event in served(engine, draw) if isinstance(event, Terminal)]


@pytest.mark.parametrize("seed", range(6))
def test_an_engine_charges_all_its_steps_to_its_requests(seed: int) -> None:
    """Chunks, drafts, shadows, several sequences, preemptions and aborts included."""
    engine, stats = charged(seed)
    assert len(stats) == 12
    assert sum(one.device.total for one in stats) == pytest.approx(engine.timings.totals.total)


def test_every_kind_of_time_is_charged() -> None:
    _, stats = charged(1)
    assert any(one.num_preemptions for one in stats)
    for kind in ("prefill", "plain", "verify", "propose", "host"):
        assert any(one.device.by_kind()[kind] for one in stats), kind


def test_a_curve_tells_about_many_rows_what_its_table_does() -> None:
    curve = CostCurve((1, 4, 64), (64, 512), ((10.0, 12.0), (11.0, 14.0), (30.0, 40.0)))
    for rows in (1, 5, 64, 100, 700):
        assert curve.ms(rows, 512) == pytest.approx(curve.table(rows, 512)[rows])


PROMPT = (3, 4, 5)


def engine_of(script: Script) -> Engine:
    engine = build(EngineSetup(proposers=[Scripted(lambda *asked: renamed(script(*asked)), DRAFT_HEAD)]))
    engine.info = replace(engine.info, draft_head="little@3")
    return engine


def renamed(draft: Draft | None) -> Draft | None:
    return replace(draft, proposer=DRAFT_HEAD) if draft else None


def asked(num_tokens: int, *, keeps: bool = True) -> GenerateRequest:
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    choice = SpeculationChoice("always", num_speculative_tokens=6)
    return replace(request("a", PROMPT, params), speculation=choice, keeps_rounds=keeps)


def stats_of(engine: Engine, source: GenerateRequest) -> RequestStats:
    return terminals(run(engine, source))["a"].stats


def one_wrong(sequence: SequenceView, limit: int) -> Draft:
    return draft_chain(sequence, min(limit, 3), wrong_from=2)


def test_rounds_say_what_was_drafted_and_what_became_of_it() -> None:
    engine = engine_of(one_wrong)
    stats = stats_of(engine, asked(20))
    counts = stats.proposers[DRAFT_HEAD]
    assert len(stats.rounds) == counts.num_drafts
    assert sum(one.num_draft_tokens for one in stats.rounds) == counts.num_draft_tokens
    assert sum(one.num_accepted for one in stats.rounds) == counts.num_accepted
    assert {(one.proposer, one.version, one.sample) for one in stats.rounds} == {(DRAFT_HEAD, "little@3", 0)}
    first, second = stats.rounds[:2]
    assert (first.position, first.num_emitted, second.position) == (1, 3, 4)
    assert first.outcome == "partly_accepted"
    assert all(a.position + a.num_emitted == b.position for a, b in pairwise(stats.rounds))


def test_rounds_follow_one_another_within_the_request() -> None:
    stats = stats_of(engine_of(one_wrong), asked(20))
    assert stats.arrival > 0.0
    assert stats.first_token_s is not None
    ends = [stats.first_token_s, *(one.ended for one in stats.rounds)]
    for before, one in zip(ends, stats.rounds, strict=False):
        assert before <= one.began
        assert one.propose_s + one.forward_s + one.verify_s <= one.ended - one.began
    assert stats.rounds[-1].ended <= stats.total_s


def test_the_longest_path_of_a_tree_counts_as_drafted() -> None:
    stats = stats_of(engine_of(draft_tree), asked(16))
    assert {(one.num_nodes, one.num_draft_tokens) for one in stats.rounds} == {(6, 3)}


def test_further_rounds_are_in_the_sums_only() -> None:
    engine = engine_of(lambda sequence, limit: draft_chain(sequence, min(limit, 1), wrong_from=0))
    stats = stats_of(engine, asked(MAX_ROUNDS + 20))
    assert len(stats.rounds) == MAX_ROUNDS
    assert stats.num_drafts > MAX_ROUNDS
    assert {one.outcome for one in stats.rounds} == {"rejected"}


def test_rounds_are_kept_only_on_request() -> None:
    assert stats_of(engine_of(one_wrong), asked(20, keeps=False)).rounds == []


@pytest.mark.parametrize(
    ("drafted", "accepted", "outcome"), [(3, 3, "accepted"), (3, 1, "partly_accepted"), (3, 0, "rejected")]
)
def test_outcomes(drafted: int, accepted: int, outcome: str) -> None:
    one = Round(0.0, 1.0, 0.1, 0.5, 0.1, 0, 1, "suffix", "", drafted, drafted, accepted, accepted + 1)
    assert one.outcome == outcome


class Worker:
    """Takes one tick of its clock in each method."""

    def __init__(self) -> None:
        ticks = count()
        self.timings = Timings(clock=lambda: float(next(ticks)))

    @timed("verify")
    def verify(self) -> str:
        return "verified"


def test_phases_are_timed_by_the_clock_given() -> None:
    worker = Worker()
    worker.timings.begin()
    assert worker.verify() == worker.verify() == "verified"
    step = worker.timings.finish(num_tokens=3, num_sequences=1)
    assert (step.verify, step.total, step.forward) == (2.0, 2.0, 0.0)
    assert worker.timings.totals.verify == 2.0
