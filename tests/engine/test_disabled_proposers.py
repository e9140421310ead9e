"""Plans that leave proposers out by traffic class, in mid-request: other steps, the same tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import PANIC_PLAN, DisabledProposer, SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import EffectiveMode, RequestStats
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.step import Engine
from tests.fakes import EngineSetup, build, drain, outputs, request, run, submit, terminals, true_continuation

PARAMS = SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True)


class Named(Proposer):
    """Drafts three right tokens under a name of its own, and remembers for whom."""

    free = True

    def __init__(self, name: str, wrong: Callable[[SequenceView], bool] = lambda sequence: False) -> None:
        self.name = name
        self.asked: list[str] = []
        self._wrong = wrong

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._draft(sequence, min(3, limit)) for sequence, limit in zip(sequences, limits, strict=True)]

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        self.asked.append(sequence.traffic_class)
        if limit == 0:
            return None
        shift = int(self._wrong(sequence))
        return chain(tuple((t + shift) % 24 for t in true_continuation(sequence, limit)), self.name)


def sliced(request_id: str, traffic_class: str, choice: SpeculationChoice | None = None) -> GenerateRequest:
    source = request(request_id, [1, 2, 3], PARAMS)
    return replace(source, traffic_class=traffic_class, speculation=choice or SpeculationChoice())


def plain() -> dict[tuple[str, int], list[int]]:
    return outputs(run(build(EngineSetup()), sliced("a", "chat"), sliced("b", "code")))


def apply(engine: Engine, **plan: object) -> None:
    engine.send(ApplyPlan(SpecPlan(fixed_depth=3, **plan)))  # type: ignore[arg-type]


def stats_of(events: Sequence[Event], request_id: str) -> RequestStats:
    terminal = terminals(events)[request_id]
    assert isinstance(terminal, Finished)
    return terminal.stats


def test_from_the_next_step_on_it_drafts_for_other_traffic_classes_only_and_the_next_one_takes_its_place() -> None:
    first, second = Named("first"), Named("second")
    engine = build(EngineSetup(proposers=[first, second]))
    apply(engine, proposers=("first",))
    submit(engine, sliced("a", "chat"), sliced("b", "code"))
    events = [event for _ in range(4) for event in engine.step()]
    assert set(first.asked) == {"chat", "code"}
    first.asked.clear()
    apply(engine, disabled=(DisabledProposer("first", "chat"),))
    events += engine.step()
    assert set(first.asked) == {"code"}
    events += drain(engine)
    assert set(first.asked) == {"code"}
    assert outputs(events) == plain()
    assert set(stats_of(events, "a").proposers) == {"first", "second"}
    assert stats_of(events, "b").mode.reason == "speculating"


def test_without_a_proposer_left_the_traffic_class_is_decoded_plainly_with_a_reason() -> None:
    engine = build(EngineSetup(proposers=[Named("first"), Named("second")]))
    apply(engine, version=4, disabled=(DisabledProposer("first", "chat"), DisabledProposer("second", "chat")))
    events = run(engine, sliced("a", "chat"), sliced("b", "code"))
    assert outputs(events) == plain()
    stats = stats_of(events, "a")
    assert stats.mode == EffectiveMode("off", "breaker_open", 4)
    assert stats.plain_steps["breaker_open"] == stats.num_steps - 1 - stats.plain_steps.get("no_capacity", 0)
    assert stats_of(events, "b").mode.mode == "on"


def test_a_proposer_that_is_disabled_for_some_tenants_drafts_for_the_others() -> None:
    first = Named("first")
    engine = build(EngineSetup(proposers=[first]))
    apply(engine, disabled=(DisabledProposer("first", "chat", tenants=frozenset({"bank"})),))
    bank, shop = (
        replace(sliced(name, "chat"), kill_scopes=frozenset({f"tenant:{name}", "route:/v1/chat/completions"}))
        for name in ("bank", "shop")
    )
    events = run(engine, bank, shop)
    assert stats_of(events, "bank").mode.reason == "breaker_open"
    assert stats_of(events, "shop").mode.mode == "on"
    [counts] = engine.speculation.proposers.ledger.counts()
    assert [part.tenant for part in counts.tenants] == ["shop"]
    [part] = counts.tenants
    assert (part.num_asked, part.num_judged, part.num_right) == (counts.num_asked, counts.num_judged, counts.num_right)


def test_a_disabled_proposer_drafts_neither_in_shadow_nor_by_name() -> None:
    first, second = Named("first"), Named("second")
    engine = build(EngineSetup(proposers=[first, second]))
    apply(engine, disabled=(DisabledProposer("first", "chat"),))
    shadow, named = SpeculationChoice("shadow"), SpeculationChoice(proposers=("first",))
    events = run(engine, sliced("a", "chat", shadow), sliced("b", "chat", named))
    assert first.asked == []
    assert set(stats_of(events, "a").shadow) == {"second"}
    assert stats_of(events, "b").mode.reason == "breaker_open"
    assert outputs(events) == plain()


def test_a_half_open_round_ends_by_itself() -> None:
    first = Named("first")
    engine = build(EngineSetup(proposers=[first]))
    apply(engine, disabled=(DisabledProposer("first", "chat", num_trials=4, trial_round=1),))
    events = run(engine, sliced("a", "chat"))
    assert len(first.asked) == 4
    assert outputs(events)["a", 0] == plain()["a", 0]


def test_a_damaged_traffic_class_shows_in_its_own_counts_only() -> None:
    engine = build(EngineSetup(proposers=[Named("first", wrong=lambda sequence: sequence.traffic_class == "code")]))
    apply(engine)
    events = run(engine, sliced("a", "chat"), sliced("b", "code"))
    assert outputs(events) == plain()
    chat, code = sorted(engine.speculation.proposers.ledger.counts(), key=lambda counts: counts.traffic_class)
    assert chat.num_right == chat.num_judged > 10
    assert code.num_right == 0 < code.num_judged


def test_forced_and_shadow_drafts_count_for_acceptance_and_not_for_costs() -> None:
    for choice in (SpeculationChoice("always"), SpeculationChoice("shadow"), SpeculationChoice()):
        engine = build(EngineSetup(proposers=[Named("first")]))
        run(engine, sliced("a", "chat", choice))
        [counts] = engine.speculation.proposers.ledger.counts()
        assert counts.num_right == counts.num_judged > 10
        weighed = choice == SpeculationChoice()
        assert (counts.num_rounds > 0, counts.spent > 0.0, counts.gained > 0.0) == (weighed, weighed, weighed)


def test_the_kill_switch_stops_drafts_from_the_next_step_on() -> None:
    first = Named("first")
    engine = build(EngineSetup(proposers=[first]))
    apply(engine)
    submit(engine, sliced("a", "chat"))
    events = [event for _ in range(5) for event in engine.step()]
    assert first.asked
    first.asked.clear()
    engine.send(ApplyPlan(replace(PANIC_PLAN, version=7, reason="killed")))
    while engine.scheduler.requests:
        events += engine.step()
        assert engine.timings.last[-1].num_tokens == 1
    assert first.asked == []
    assert outputs(events)["a", 0] == plain()["a", 0]
    assert stats_of(events, "a").mode == EffectiveMode("on", "killed", 7)
    events = run(engine, sliced("c", "chat"), sliced("d", "chat", SpeculationChoice("off")))
    assert stats_of(events, "c").mode == EffectiveMode("off", "killed", 7)
    assert stats_of(events, "d").mode.reason == "requested_off"


def test_a_flag_is_the_reason_where_one_turned_it_off() -> None:
    choice = SpeculationChoice("off", "flag_off")
    events = run(build(EngineSetup(proposers=[Named("first")])), sliced("a", "chat", choice))
    assert stats_of(events, "a").mode == EffectiveMode("off", "flag_off", 0)
