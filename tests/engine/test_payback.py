"""Whether drafts pay, in an engine: who drafts, what is measured, and that the text stays the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import DisabledProposer, SpecPlan
from prolepsis.core.requests import SpecMode, SpeculationChoice
from prolepsis.engine.decide import SAMPLED_DRAFTS
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.worth import StepCost
from prolepsis.engine.speculation import Speculation
from prolepsis.engine.step import Engine
from tests.fake_proposer import Script, Scripted
from tests.fakes import EngineSetup, build, draft_chain, drain, outputs, request, run, submit, terminals

PROMPT = (3, 4, 5)


class Told(Payback):
    """Lets the sequences `active` draft, and keeps what it learns."""

    def __init__(self, active: Sequence[str] = ()) -> None:
        super().__init__()
        self.active = frozenset(active)
        self.begun: list[tuple[tuple[str, ...], int]] = []
        self.steps: list[tuple[StepCost, Mapping[str, tuple[int, int]]]] = []
        self.forgotten: list[str] = []

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        self.begun.append((tuple(keys), num_sequences))
        return self.active.intersection(keys)

    def drops_states(self, key: str) -> bool:
        return key not in self.active

    def observe(self, step: StepCost, drafts: Mapping[str, tuple[int, int]]) -> None:
        self.steps.append((step, drafts))

    def forget(self, key: str) -> None:
        self.forgotten.append(key)


def _wrong(sequence: SequenceView, limit: int) -> Draft | None:
    return chain((1, 2)[:limit], "scripted")


def _engine(payback: Payback) -> tuple[Engine, Scripted]:
    scripted = Scripted(_wrong)
    engine = build(EngineSetup(proposers=[scripted]))
    proposers = engine.speculation.proposers
    engine.speculation = Speculation(proposers, max_step_tokens=64, max_model_len=256, payback=payback)
    return engine, scripted


def test_a_sequence_that_pauses_is_decoded_plainly_with_the_reason_and_its_text_is_the_same() -> None:
    plain = outputs(run(build(EngineSetup()), request("a", PROMPT), request("b", PROMPT)))
    payback = Told(["b/0"])
    engine, scripted = _engine(payback)
    events = run(engine, request("a", PROMPT), request("b", PROMPT))
    assert outputs(events) == plain
    ended = terminals(events)
    assert ended["a"].stats.plain_steps == {"too_costly": len(plain["a", 0]) - 1}
    assert ended["b"].stats.num_drafts > 0
    assert ("a/0", 22) not in scripted.committed, "it learns nothing while the sequence pauses"
    assert [key for key, _ in scripted.committed].count("a/0") == 1, "and its text at the end"
    assert payback.forgotten == ["a/0", "b/0"]


@pytest.mark.parametrize("active", [(), ("a/0",)])
@pytest.mark.parametrize("by", ["breaker_open", "killed"])
def test_what_stops_all_proposers_is_the_reason_also_of_a_sequence_that_pauses(by: str, active: Sequence[str]) -> None:
    engine, _ = _engine(Told(active))
    disabled = (DisabledProposer("scripted", request("a", PROMPT).traffic_class),)
    killed = frozenset({kill_scope("proposer", "scripted")})
    engine.plan.apply(SpecPlan(disabled=disabled) if by == "breaker_open" else SpecPlan(killed=killed))
    stats = terminals(run(engine, request("a", PROMPT)))["a"].stats
    assert (set(stats.plain_steps), stats.mode.reason) == ({by}, by)


class Napping(Told):
    """Lets all sequences draft in every third step only."""

    def begin(self, keys: Sequence[str], num_sequences: int, *, only_decodes: bool = True) -> frozenset[str]:
        self.begun.append((tuple(keys), num_sequences))
        return frozenset(keys if len(self.begun) % 3 == 0 else ())

    def drops_states(self, key: str) -> bool:
        return False


def test_what_a_sequence_emits_while_it_pauses_is_learned_when_it_may_draft_again() -> None:
    engine, scripted = _engine(Napping())
    events = run(engine, request("a", PROMPT))
    text = outputs(events)
    assert text == outputs(run(build(EngineSetup()), request("a", PROMPT)))
    news = [new for key, new in scripted.committed if key == "a/0"]
    assert sum(news) == len(PROMPT) + len(text["a", 0]), "each token once"
    assert news[1:5] == [2, 1, 2, 1], "those of a pause, then that of the step"


def test_a_step_is_observed_with_the_gain_of_its_drafts() -> None:
    payback = Told(["b/0"])
    engine, _ = _engine(payback)
    run(engine, request("a", PROMPT), request("b", PROMPT))
    step, drafts = payback.steps[0]
    nodes, gained = drafts["b/0"]
    assert (step.num_sequences, step.num_tokens, step.num_draft_tokens) == (2, 2 + gained, nodes)
    assert drafts.keys() == {"b/0"}
    assert step.ms > step.drafting_ms > 0.0
    assert step.plain_ms > 10.0, "by the curve of the fake: 10 ms and 0.1 a token, and what is outside of the pass"
    assert step.verifying_ms > 0.0


def test_requests_that_draft_at_any_price_or_not_at_all_are_not_asked_about() -> None:
    payback = Told()
    engine, _ = _engine(payback)
    for choice in (SpeculationChoice("always"), SpeculationChoice("off")):
        submit(engine, replace(request(choice.mode, PROMPT), speculation=choice))
    ended = terminals(drain(engine))
    assert ended["always"].stats.num_drafts > 0
    assert not payback.begun
    assert not payback.steps


@pytest.mark.parametrize("mode", ["auto", "shadow", "always"])
def test_every_step_that_decodes_earns_for_what_is_not_expected_to_pay(mode: SpecMode) -> None:
    """With shadow alone, the first stage of a rollout, a costly proposer was soon never asked again."""
    engine, _ = _engine(Payback())
    explore = engine.speculation.proposers.explore
    explore.charge("retry", 1.01)
    assert not explore.grant("retry", 1.0)
    run(engine, replace(request("a", PROMPT), speculation=SpeculationChoice(mode)))
    assert explore.grant("retry", 1.0)


def test_a_fixed_depth_is_kept_at_any_price() -> None:
    payback = Told()
    engine, _ = _engine(payback)
    engine.send(ApplyPlan(SpecPlan(fixed_depth=2)))
    ended = terminals(run(engine, request("a", PROMPT)))
    assert ended["a"].stats.num_drafts > 0
    assert not payback.begun


def test_steps_that_compute_prompts_are_not_compared() -> None:
    payback = Told(["a/0"])
    engine, _ = _engine(payback)
    submit(engine, request("a", PROMPT))
    for _ in range(4):
        engine.step()
    known = len(payback.steps)
    submit(engine, request("b", PROMPT))
    engine.step()
    assert len(payback.steps) == known
    engine.step()
    assert len(payback.steps) == known + 1


class Ticking:
    """A clock of the engine's thread on which half a second passes at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def _sampled_engine(
    payback: Payback, script: Script = _wrong, *, free: bool = True, kind: type[Scripted] = Scripted
) -> tuple[Engine, Scripted]:
    scripted = kind(script, free=free)
    engine = build(EngineSetup(proposers=[scripted]))
    proposers = engine.speculation.proposers
    clock = Ticking()
    engine.speculation = Speculation(proposers, max_step_tokens=64, max_model_len=256, payback=payback, clock=clock)
    return engine, scripted


@pytest.mark.parametrize("free", [True, False])
def test_of_a_proposer_that_is_no_longer_asked_drafts_are_compared_without_a_draft_verified(free: bool) -> None:
    engine, scripted = _sampled_engine(Told(), free=free)
    asked = [request(str(i), PROMPT) for i in range(8)]
    plain = outputs(run(build(EngineSetup()), *asked))
    events = run(engine, *asked)
    assert outputs(events) == plain
    stats = [event.stats for event in terminals(events).values()]
    sampled = [one for one in stats if one.shadow]
    assert 0 < len(sampled) < len(stats)
    for one in sampled:
        assert [draft.right for draft in one.judged["scripted"]] == [False] * SAMPLED_DRAFTS
        assert one.shadow["scripted"].num_drafts == SAMPLED_DRAFTS
        assert (one.num_drafts, one.mode.mode, one.mode.reason) == (0, "off", "too_costly")
    assert scripted.committed, "it learns the text of what it is compared on"


def test_sequences_that_draft_anyway_are_not_sampled() -> None:
    asked = [request(str(i), PROMPT) for i in range(8)]
    engine, _ = _sampled_engine(
        Told([f"{i}/0" for i in range(8)]), lambda sequence, limit: draft_chain(sequence, limit, wrong_from=99)
    )
    stats = [event.stats for event in terminals(run(engine, *asked)).values()]
    assert all(one.num_drafts > 0 and not one.shadow for one in stats)


def test_a_sample_waits_for_a_proposer_that_has_no_draft_yet() -> None:
    """As a head whose states of the prompt are missing, which drafts from the next page on."""

    def late(sequence: SequenceView, limit: int) -> Draft | None:
        return None if len(sequence.tokens) < 10 else _wrong(sequence, limit)

    engine, _ = _sampled_engine(Told(), late)
    stats = [event.stats for event in terminals(run(engine, *(request(str(i), PROMPT) for i in range(8)))).values()]
    assert {one.shadow["scripted"].num_drafts for one in stats if one.shadow} == {SAMPLED_DRAFTS}


@pytest.mark.parametrize(
    ("plan", "is_sampled"),
    [
        (SpecPlan(killed=frozenset({kill_scope("proposer", "scripted")})), False),
        (SpecPlan(disabled=(DisabledProposer("scripted", ""),)), False),
        (SpecPlan(disabled=(DisabledProposer("scripted", "", compared=True),)), True),
    ],
)
def test_samples_are_drafts_of_proposers_that_may_be_compared(plan: SpecPlan, is_sampled: bool) -> None:
    engine, _ = _sampled_engine(Told())
    engine.send(ApplyPlan(plan))
    run(engine, *(request(str(i), PROMPT) for i in range(8)))
    assert (engine.speculation.decisions.num_sampled > 0) == is_sampled
    counts = engine.speculation.proposers.ledger.counts()
    assert any(count.num_judged for count in counts) == is_sampled


@pytest.mark.parametrize("tenant", ["acme", "other"])
def test_samples_are_drafts_of_proposers_that_serve_the_request(tenant: str) -> None:
    class Reserved(Scripted):
        def serves(self, sequence: SequenceView) -> bool:
            return sequence.tenant == "acme"

    engine, _ = _sampled_engine(Told(), kind=Reserved)
    scopes = frozenset({kill_scope("tenant", tenant)})
    run(engine, *(replace(request(str(i), PROMPT), kill_scopes=scopes) for i in range(8)))
    assert (engine.speculation.decisions.num_sampled > 0) == (tenant == "acme")


def test_a_proposer_that_backs_off_is_not_sampled() -> None:
    def broken(sequence: SequenceView, limit: int) -> Draft | None:
        raise RuntimeError("down")

    engine, _ = _sampled_engine(Told(), broken)
    for i in range(16):
        run(engine, request(str(i), PROMPT))
    decisions, proposers = engine.speculation.decisions, engine.speculation.proposers
    assert [proposer.name for proposer in proposers.contained if proposer.is_out] == ["scripted"]
    before = decisions.num_sampled
    assert before > 0, "until it had failed often enough"
    run(engine, request("later", PROMPT))
    assert decisions.num_sampled == before
