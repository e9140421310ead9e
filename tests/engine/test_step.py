"""One engine step by step: what comes out, what is counted, and what a failure costs."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidParameter,
    StepFailed,
)
from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.figures import FaultCount, Figure, RequestDone, StepDone
from prolepsis.core.messages import Abort, ApplyPlan, LearnedAcceptance, Submit
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.step import MAX_FAILED_STEPS
from tests.fake_proposer import Scripted
from tests.fakes import (
    EOS,
    VOCAB,
    EngineSetup,
    Letters,
    build,
    draft_chain,
    draft_tree,
    drain,
    outputs,
    reference,
    request,
    run,
    submit,
    terminals,
)

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def stats_of(events: Sequence[object]) -> RequestStats:
    (finished,) = [e for e in events if isinstance(e, Finished)]
    return finished.stats


def test_greedy_request_decodes_as_the_reference() -> None:
    source = request("a", [1, 2, 3], LONG)
    events = run(build(EngineSetup()), source)
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
    assert isinstance(terminals(events)["a"], Finished)


def test_long_prompt_is_computed_in_chunks_beside_decoding_requests() -> None:
    engine = build(EngineSetup(max_step_tokens=16))
    first, second = request("a", [1, 2], LONG), request("b", [i % VOCAB for i in range(100)], LONG)
    submit(engine, first)
    engine.step()
    submit(engine, second)
    for _ in range(5):
        engine.step()
        timing = engine.timings.last[-1]
        assert (timing.num_tokens, timing.num_sequences) == (16, 2)
    texts = outputs(drain(engine))
    assert texts["a", 0] == reference(first, noise_key(0, 0))[6:]
    assert texts["b", 0] == reference(second, noise_key(0, 0))


def test_chain_and_tree_drafts_change_steps_but_not_tokens() -> None:
    source = request("a", [1, 2, 3], LONG)
    plain = outputs(run(build(EngineSetup()), source))
    for script in (lambda s, n: draft_chain(s, n, wrong_from=3), draft_tree):
        engine = build(EngineSetup(proposers=[Scripted(script)]))
        engine.send(ApplyPlan(SpecPlan(fixed_depth=6)))
        events = run(engine, source)
        assert outputs(events) == plain
        stats = stats_of(events)
        assert stats.num_steps < 20
        assert stats.num_output_tokens == 40
        assert stats.mode.reason == "speculating"
        assert 0 <= stats.num_accepted - (40 - stats.num_steps) <= 1


def test_draft_is_cut_after_end_of_sequence_and_counts_only_what_was_emitted() -> None:
    source = request("a", [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=200))
    expected = reference(source, noise_key(0, 0))
    assert expected[-1] == EOS
    engine = build(EngineSetup(proposers=[Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=16)))
    events = run(engine, source)
    assert outputs(events)["a", 0] == expected
    stats = stats_of(events)
    assert stats.num_accepted + stats.num_steps >= len(expected)
    assert stats.num_draft_tokens <= len(expected)


def test_finish_reasons() -> None:
    base = request("a", [1, 2, 3], LONG)
    tokens = reference(base, noise_key(0, 0))
    text = Letters().decode(tokens)
    cases = {
        "length": (LONG, "length", None),
        "id": (SamplingParams(temperature=0.0, stop_token_ids=(tokens[5],), ignore_eos=True), "stop", tokens[5]),
        "text": (SamplingParams(temperature=0.0, stop=(text[7:10],), ignore_eos=True), "stop", text[7:10]),
    }
    for name, (params, reason, stop_reason) in cases.items():
        source = request(name, [1, 2, 3], params)
        for proposers in ((), [Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))]):
            events = run(build(EngineSetup(proposers=proposers)), source)
            last = [e for e in events if isinstance(e, Tokens)][-1]
            assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
            assert outputs(events)[name, 0] == reference(source, noise_key(0, 0))


def test_answer_ends_where_the_context_does() -> None:
    source = request("a", [1] * 40, SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True))
    drafting = [Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))]
    for proposers in ((), drafting):
        engine = build(EngineSetup(max_model_len=64, num_pages=2, proposers=proposers))
        events = run(engine, source)
        assert outputs(events)["a", 0] == reference(source, noise_key(0, 0), max_model_len=64)
        assert len(outputs(events)["a", 0]) == 24


def test_sequences_of_one_request_share_the_prompt_and_differ_by_their_key() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, seed=7)
    source = request("a", [i % VOCAB for i in range(64)], params, n=4)
    engine = build(EngineSetup())
    submit(engine, source)
    events = engine.step()
    assert engine.scheduler.kv_usage <= 3 / 64
    events += drain(engine)
    texts = outputs(events)
    assert [texts["a", i] for i in range(4)] == [reference(source, noise_key(7, i)) for i in range(4)]
    assert len({tuple(text) for text in texts.values()}) == 4
    assert engine.scheduler.kv_usage == 0


def test_equal_prompts_reuse_pages_within_a_scope_only() -> None:
    engine = build(EngineSetup())
    prompt = [i % VOCAB for i in range(96)]
    first = stats_of(run(engine, request("a", prompt, LONG)))
    again = run(engine, request("b", prompt, LONG))
    other = run(engine, GenerateRequest("c", tuple(prompt), LONG, cache_salt="someone else"))
    assert (first.num_cached_tokens, stats_of(again).num_cached_tokens, stats_of(other).num_cached_tokens) == (0, 64, 0)
    assert outputs(again)["b", 0] == outputs(other)["c", 0]


def test_higher_priority_takes_the_place_of_lower() -> None:
    engine = build(EngineSetup(max_sequences=1))
    low, high = request("low", [1], LONG, priority=5), request("high", [2], LONG, priority=1)
    submit(engine, low)
    engine.step()
    submit(engine, high)
    events = drain(engine)
    assert list(terminals(events)) == ["high", "low"]
    assert terminals(events)["low"].stats.num_preemptions == 1


@pytest.mark.parametrize(("priority", "order"), [(1, "a low b c"), (2, "a b c low")])
def test_what_is_lower_by_one_gives_way_once(priority: int, order: str) -> None:
    engine = build(EngineSetup(max_sequences=1))
    submit(engine, request("low", [1], LONG, priority=priority))
    events = engine.step()
    for name in "abc":
        submit(engine, request(name, [2], LONG))
        events += engine.step()
    events += drain(engine)
    assert list(terminals(events)) == order.split()


@pytest.mark.parametrize(("priority", "is_served"), [(1, True), (2, False)])
def test_what_is_lower_by_one_waits_for_few_where_others_fill_the_pages_for_ever(
    priority: int, *, is_served: bool
) -> None:
    """As a tenant's further requests did, while those of many tenants with one request each went on coming."""
    engine = build(EngineSetup(num_pages=9, max_model_len=64, prefix_cache=False))
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    ended = set[str]()
    for i in range(4):  # more than there are pages for
        submit(engine, request(f"better {i}", [i] * 20, params))
    engine.step()
    for i in range(3):
        submit(engine, request(f"low {i}", [i] * 20, params, priority=priority))
    for _ in range(1000):
        for name in terminals(engine.step()):
            ended.add(name)
            if name.startswith("better"):
                submit(engine, request(f"better {len(ended) + 3}", [5] * 20, params))
        engine.scheduler.check()
    assert len(ended) > 50
    assert {f"low {i}" in ended for i in range(3)} == {is_served}


@pytest.mark.parametrize("num_pages", [64, 20])
def test_a_better_request_displaces_one_and_waits_for_none_that_gave_way(num_pages: int) -> None:
    engine = build(EngineSetup(max_sequences=6, num_pages=num_pages, max_model_len=64))
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    for i in range(6):
        submit(engine, request(f"low {i}", [i], LONG, priority=1))
    events = engine.step()
    for name in "abc":
        submit(engine, request(name, [9], short), request(f"{name}2", [8], short))
        news = [event for _ in range(4) for event in engine.step()]
        assert {name, f"{name}2"} <= terminals(news).keys()
        events += news
    ends = terminals(events + drain(engine))
    assert len(ends) == 12
    assert max(end.stats.num_preemptions for end in ends.values()) == 1


def test_preempted_requests_say_the_same() -> None:
    sources = [request(str(i), [i + 1] * 30, LONG) for i in range(6)]
    engine = build(EngineSetup(num_pages=8, max_model_len=128))
    events = run(engine, *sources)
    ends = terminals(events)
    assert sum(ends[s.request_id].stats.num_preemptions for s in sources) > 0
    for source in sources:
        assert outputs(events)[source.request_id, 0] == reference(source, noise_key(0, 0))


def test_queue_and_compute_time_add_up() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    engine = build(EngineSetup(max_sequences=1, clock=clock))
    ends = terminals(run(engine, request("a", [1], LONG), request("b", [2], LONG)))
    for end in ends.values():
        assert end.stats.queue_s + end.stats.compute_s == pytest.approx(end.stats.total_s)
    assert ends["b"].stats.queue_s >= ends["a"].stats.compute_s > 0


@pytest.mark.parametrize("lender", ["scripted", ""])
def test_a_better_priority_borrows_before_it_displaces(lender: str) -> None:
    lending = Scripted(lambda sequence, limit: None)
    engine = build(EngineSetup(num_pages=8, max_model_len=256, num_lendable=8, lender=lender, proposers=[lending]))
    low, same = (request(name, [i] * 120, LONG, priority=2) for i, name in enumerate(("low", "same"), 1))
    high = request("high", [3] * 120, LONG, priority=1)
    submit(engine, low)
    events = [event for _ in range(4) for event in engine.step()]
    submit(engine, high, same)
    events += engine.step()
    assert {sequence.request.request_id for sequence in engine.scheduler.running} == {"high", *(["low"] * bool(lender))}
    events += drain(engine)
    assert (terminals(events)["low"].stats.num_preemptions == 0) == bool(lender)
    for source in (low, high, same):
        assert outputs(events)[source.request_id, 0] == reference(source, noise_key(0, 0))


def test_waiting_after_a_preemption_is_queue_time() -> None:
    now = [0.0]
    engine = build(EngineSetup(max_sequences=1, clock=lambda: now[0]))
    submit(engine, request("low", [1], LONG, priority=5))
    events = engine.step()
    submit(engine, request("high", [2], LONG, priority=1))
    while "high" not in terminals(events):
        now[0] += 1.0
        events += engine.step()
    events += drain(engine)
    low, high = terminals(events)["low"].stats, terminals(events)["high"].stats
    assert low.queue_s == high.compute_s == 39.0


def test_a_prompt_waits_until_a_pass_has_a_part_of_it() -> None:
    """It runs, with its pages, behind the long prompt of another; that is a queue, and health names it."""
    now = [0.0]
    engine = build(EngineSetup(max_step_tokens=8, clock=lambda: now[0]))
    submit(engine, request("first", [1] * 40, LONG), request("second", [2] * 4, LONG))
    events, seen = list[Event](), []
    for _ in range(6):
        now[0] += 1.0
        events += engine.step()
        seen.append(engine.health().not_begun)
    assert seen == [("second",)] + [()] * 5, "every other pass begins with the prompt that has least left"
    events += drain(engine)
    first, second = terminals(events)["first"].stats, terminals(events)["second"].stats
    assert (first.queue_s, second.queue_s) == (1.0, 2.0)
    assert second.prefill_s < 2.0


def test_health_says_how_far_prompts_were_read_until_they_are() -> None:
    engine = build(EngineSetup(max_step_tokens=8))
    submit(engine, request("a", [1] * 20, LONG))
    seen = list[tuple[PromptProgress, ...]]()
    for _ in range(3):
        engine.step()
        seen.append(engine.health().reading)
    assert seen == [(PromptProgress("a", 8, 0, 20),), (PromptProgress("a", 16, 0, 20),), ()]


def test_a_request_that_is_aborted_while_its_prompt_is_read_gives_its_pages_back() -> None:
    engine = build(EngineSetup(max_step_tokens=8))
    submit(engine, request("a", [1] * 40, LONG))
    engine.step()
    assert engine.scheduler.kv_usage > 0
    engine.send(Abort("a", "client"))
    assert isinstance(terminals(engine.step())["a"], Aborted)
    assert (engine.scheduler.kv_usage, engine.health().reading) == (0, ())


def test_tokens_after_a_stop_string_are_neither_kept_nor_published() -> None:
    prompt = [1] * 25
    expected = reference(request("a", prompt, LONG), noise_key(0, 0))
    stop = Letters().decode(expected[1:3])
    params = SamplingParams(temperature=0.0, stop=(stop,), ignore_eos=True, max_tokens=40)
    engine = build(EngineSetup(proposers=[Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=12)))
    events = run(engine, request("a", prompt, params))
    assert isinstance(terminals(events)["a"], Finished)
    assert outputs(events)["a", 0] == expected[:3]
    again = run(engine, request("b", prompt + expected, LONG))
    assert terminals(again)["b"].stats.num_cached_tokens == 0


def test_abort_ends_a_request_and_leaves_its_neighbour() -> None:
    engine = build(EngineSetup())
    source = request("b", [2], LONG)
    submit(engine, request("a", [1], LONG), source)
    events = engine.step()
    engine.send(Abort("a", "client"))
    engine.send(Abort("nobody"))
    events += drain(engine)
    assert isinstance(terminals(events)["a"], Aborted)
    assert outputs(events)["b", 0] == reference(source, noise_key(0, 0))


def test_deadline_fails_a_request_waiting_or_running() -> None:
    now = [0.0]
    engine = build(EngineSetup(max_sequences=1, clock=lambda: now[0]))
    running, waiting = (GenerateRequest(i, (1,), LONG, deadline_s=5.0) for i in "ab")
    submit(engine, running, waiting)
    events = engine.step()
    now[0] = 5.0
    events += drain(engine)
    for end in terminals(events).values():
        assert isinstance(end, Failed)
        assert isinstance(end.error, DeadlineExceeded)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (request("a", [1] * 256), ContextTooLong, "maximum context length is 256 tokens; given: 256 in the prompt"),
        (request("a", []), InvalidParameter, "at least 1"),
        (request("a", [1, VOCAB]), InvalidParameter, f"token {VOCAB}; allowed: 0 to {VOCAB - 1}"),
        (request("a", [1], n=0), InvalidParameter, "n is 0"),
        (request("a", [1], SamplingParams(top_p=1.5)), InvalidParameter, "top_p"),
    ],
)
def test_what_cannot_be_served_is_refused(source: GenerateRequest, error: type[Exception], message: str) -> None:
    engine = build(EngineSetup())
    with pytest.raises(error, match=message):
        engine.validate(source)
    end = terminals(run(engine, source))["a"]
    assert isinstance(end, Failed)
    assert isinstance(end.error, error)


def test_used_id_does_not_disturb_its_owner() -> None:
    source = request("a", [1], LONG)
    events = run(build(EngineSetup()), source, request("a", [2], LONG))
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
    assert isinstance(terminals(events)["a"], Finished)


def test_failed_step_costs_its_requests_only() -> None:
    engine = build(EngineSetup(max_sequences=1))
    source = request("b", [2], LONG)
    submit(engine, request("a", [1], LONG), source)
    events = engine.step()
    engine.runner.model.fail_next = 1  # type: ignore[attr-defined]
    events += drain(engine)
    end = terminals(events)["a"]
    assert isinstance(end, Failed)
    assert isinstance(end.error, EngineError)
    assert "the device is gone" in str(end.error)
    assert outputs(events)["b", 0] == reference(source, noise_key(0, 0))
    assert engine.dead is None


def test_repeated_failure_ends_the_engine_cleanly() -> None:
    engine = build(EngineSetup(max_sequences=1))
    engine.runner.model.fail_next = 99  # type: ignore[attr-defined]
    events = run(engine, *(request(str(i), [1], LONG) for i in range(6)))
    kinds = [type(end.error) for end in terminals(events).values() if isinstance(end, Failed)]
    assert kinds == [StepFailed] * MAX_FAILED_STEPS + [EngineDead] * (6 - MAX_FAILED_STEPS)
    with pytest.raises(EngineDead):
        engine.validate(request("late", [1]))
    (late,) = run(engine, request("late", [1]))
    assert isinstance(late, Failed)
    assert not engine.health().alive


def test_broken_accounting_ends_the_engine_cleanly() -> None:
    engine = build(EngineSetup())
    submit(engine, request("a", [1], LONG))
    events = engine.step()
    engine.scheduler._paging.pool._free.pop()
    engine.runner.model.fail_next = 1  # type: ignore[attr-defined]
    submit(engine, request("b", [1], LONG))
    events += drain(engine, check=False)
    assert len(terminals(events)) == 2
    assert "accounting" in str(engine.dead)


def test_proposer_that_raises_or_lies_costs_nothing_but_its_drafts() -> None:
    def boom(*_: object) -> None:
        raise ValueError("no idea")

    source = request("a", [1, 2, 3], LONG)
    scripts = [boom, lambda s, n: chain((VOCAB,), "scripted"), lambda s, n: "nonsense"]
    for script in scripts:
        engine = build(EngineSetup(proposers=[Scripted(script)]))  # type: ignore[arg-type]
        events = run(engine, source)
        assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
        assert engine.speculation.proposers.failures["scripted"] > 0
        stats = stats_of(events)
        assert set(stats.plain_steps) <= {"no_draft", "backoff", "no_capacity"}
        assert stats.mode.reason == max(stats.plain_steps, key=lambda reason: stats.plain_steps[reason])


def test_draft_without_pages_is_dropped_and_the_row_stays() -> None:
    scripted = Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))
    sources = [request(str(i), [i + 1] * 20, LONG) for i in range(4)]
    engine = build(EngineSetup(num_pages=8, max_model_len=64, proposers=[scripted]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=16)))
    events = run(engine, *sources)
    for source in sources:
        assert outputs(events)[source.request_id, 0] == reference(source, noise_key(0, 0))
        assert terminals(events)[source.request_id].stats.num_preemptions == 0


def test_every_decoding_step_has_a_draft_or_a_reason() -> None:
    hopeless = Scripted(lambda s, n: draft_chain(s, n, wrong_from=0) if len(s.tokens) % 2 else None)
    sources = [request(str(i), [i + 1] * 20, LONG) for i in range(4)]
    for setup in (EngineSetup(proposers=[hopeless]), EngineSetup(num_pages=8, max_model_len=64, proposers=[hopeless])):
        for end in terminals(run(build(setup), *sources)).values():
            stats = end.stats
            prefills = 1 + stats.num_preemptions
            assert sum(stats.plain_steps.values()) + stats.num_drafts >= stats.num_steps - prefills
            assert sum(stats.plain_steps.values()) + stats.num_drafts < stats.num_steps
            assert stats.plain_steps["no_draft"] > 0
            assert stats.plain_steps["no_capacity"] > 0, "the last token of an answer needs no draft"


def test_effective_mode_says_why() -> None:
    drafting = [Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))]
    off = GenerateRequest("a", (1,), LONG, speculation=SpeculationChoice("off"))
    ruled_off = GenerateRequest("a", (1,), LONG, speculation=SpeculationChoice("off", "rule_off"))
    named = GenerateRequest("a", (1,), LONG, speculation=SpeculationChoice(proposers=("other",)))
    short = request("a", [1], SamplingParams(temperature=0.0, max_tokens=1))
    plain = request("a", [1], LONG)
    cases = [
        (off, SpecPlan(), "requested_off"),
        (ruled_off, SpecPlan(), "rule_off"),
        (named, SpecPlan(), "no_draft"),
        (short, SpecPlan(), "no_decode"),
        (plain, SpecPlan(3, 0), "plan_off"),
        (plain, SpecPlan(4), "speculating"),
    ]
    for source, plan, reason in cases:
        engine = build(EngineSetup(proposers=drafting))
        engine.send(ApplyPlan(plan))
        mode = stats_of(run(engine, source)).mode
        assert (mode.reason, mode.plan_version) == (reason, plan.version)


def test_ceiling_of_a_request_holds() -> None:
    scripted = Scripted(lambda s, n: draft_chain(s, n, wrong_from=99))
    source = GenerateRequest("a", (1,), LONG, speculation=SpeculationChoice(num_speculative_tokens=2))
    engine = build(EngineSetup(proposers=[scripted]))
    engine.send(ApplyPlan(SpecPlan(fixed_depth=8)))
    stats = stats_of(run(engine, source))
    assert len(stats.proposers["scripted"].per_position) == 2


def test_proposers_are_asked_for_no_more_tokens_than_can_be_emitted() -> None:
    asked: list[tuple[int, int]] = []

    def script(sequence: SequenceView, limit: int) -> Draft:
        asked.append((len(sequence.tokens), limit))
        return draft_chain(sequence, limit, wrong_from=1)

    plan = ApplyPlan(SpecPlan(fixed_depth=16))
    for params, end in ((LONG, 43), (SamplingParams(temperature=0.0, max_tokens=99, ignore_eos=True), 64)):
        engine = build(EngineSetup(max_model_len=64, max_step_tokens=16, proposers=[Scripted(script)]))
        engine.send(plan)
        run(engine, request("a", [1, 2, 3], params))
        assert all(limit == min(15, end - 1 - length) for length, limit in asked)
        assert asked.pop()[1] <= 2
        asked.clear()


def test_proposers_learn_the_prompt_once_then_each_step_and_forget_once() -> None:
    scripted = Scripted(lambda s, n: draft_chain(s, n, wrong_from=2))
    source = request("a", [1, 2, 3], LONG)
    run(build(EngineSetup(proposers=[scripted])), source)
    assert scripted.committed[0] == ("a/0", 4)
    assert sum(count for _, count in scripted.committed) == 43
    assert scripted.forgotten == ["a/0"]


class Recorder:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ended: list[int] = []
        self.failed: list[tuple[str, int]] = []
        self.learned: list[LearnedAcceptance] = []

    def observe(self, figure: Figure) -> None:
        match figure:
            case StepDone(seconds, num_tokens):
                assert set(seconds) == {"schedule", "propose", "forward", "verify", "commit", "learn"}
                self.steps.append(num_tokens)
            case RequestDone(stats):
                self.ended.append(stats.num_output_tokens)
            case FaultCount("proposer", name, number):
                self.failed.append((name, number))
            case LearnedAcceptance():
                self.learned.append(figure)


def test_observer_hears_of_every_step_and_every_accepted_request() -> None:
    recorder = Recorder()
    engine = build(EngineSetup(observer=recorder))
    submit(engine, request("a", [1, 2], LONG), request("b", [1], LONG), request("refused", []))
    engine.step()
    engine.send(Abort("b"))
    drain(engine)
    assert sorted(recorder.ended) == [1, 40]
    assert recorder.steps == [3] + [1] * 39
    assert engine.timings.num_steps == 40


def _learned(
    num_waves: int, *known: LearnedAcceptance, by_tenant: bool = False
) -> tuple[list[LearnedAcceptance], list[int]]:
    """Return what an engine reports that knows something before, and the drafted tokens of the first step of waves.

    Two of the tokens of each draft are right.
    """
    recorder, verified = Recorder(), list[int]()
    draft = Scripted(lambda sequence, limit: draft_chain(sequence, limit, wrong_from=2))
    draft.by_tenant = by_tenant
    engine = build(EngineSetup(observer=recorder, proposers=[draft]))
    for each in known:
        engine.send(each)
    for wave in range(num_waves):
        submit(engine, *(request(f"{wave}{name}", [1, 2, 3], LONG) for name in "abc"))
        engine.step()  # reads the prompts
        counts = engine.speculation.proposers.counts["scripted"]
        before = counts.num_draft_tokens
        engine.step()
        verified.append(counts.num_draft_tokens - before)
        drain(engine, check=False)
    engine.wait(0.0)
    return recorder.learned, verified


def test_an_engine_begins_at_the_depth_that_another_learned_with_the_same_weights() -> None:
    learned, verified = _learned(20)
    assert [(each.proposer, each.weights) for each in learned] == [("scripted", "fp")]
    assert _learned(1, *learned)[1] == verified[-1:] < verified[:1]
    assert _learned(1, replace(learned[0], weights="another"))[1] == verified[:1]


def test_what_is_learned_by_tenant_is_not_reported() -> None:
    assert _learned(20, by_tenant=True)[0] == []


def test_observer_hears_once_of_a_proposer_that_never_failed() -> None:
    recorder = Recorder()
    scripted = Scripted(lambda s, n: draft_chain(s, n, wrong_from=2))
    run(build(EngineSetup(observer=recorder, proposers=[scripted])), request("a", [1, 2, 3], LONG))
    assert recorder.failed == [("scripted", 0)], "an alert on a rise needs the 0 before it"


def test_two_engines_in_one_process_do_not_meet() -> None:
    one, two = build(EngineSetup()), build(EngineSetup(num_pages=16, max_model_len=64))
    source, other = request("a", [1, 2], LONG), request("a", [2, 1], LONG)
    submit(one, source)
    submit(two, other)
    texts: list[list[object]] = [[], []]
    while one.has_work or two.has_work:
        texts[0] += one.step()
        texts[1] += two.step()
    assert outputs(texts[0])["a", 0] == reference(source, noise_key(0, 0))  # type: ignore[arg-type]
    assert outputs(texts[1])["a", 0] == reference(other, noise_key(0, 0))  # type: ignore[arg-type]


def test_shutdown_ends_what_is_live_and_what_is_still_in_the_inbox() -> None:
    engine = build(EngineSetup())
    submit(engine, request("a", [1], LONG))
    events = engine.step()
    engine.send(Submit(request("b", [1]), engine.clock()))
    events += engine.abort_all("shutdown")
    assert [(e.request_id, e.reason) for e in events if isinstance(e, Aborted)] == [
        ("a", "shutdown"),
        ("b", "shutdown"),
    ]
    assert not engine.has_work


def test_positions_go_on_through_preemptions_drafts_and_sequences() -> None:
    sources = [request(str(i), [i + 1] * 30, LONG, n=2) for i in range(4)]
    engine = build(EngineSetup(num_pages=8, max_model_len=128, proposers=[Scripted(draft_tree)]))
    events = [event for event in run(engine, *sources) if isinstance(event, Tokens)]
    lengths: dict[tuple[str, int], int] = {}
    for event in events:
        assert event.position == lengths.get((event.request_id, event.index), 0)
        lengths[event.request_id, event.index] = event.position + len(event.token_ids)
    assert len(lengths) == 8
