"""A trace through admission, policy and a rehearsed engine."""

from dataclasses import replace

import pytest

from prolepsis.control.policy.check import NOTHING_KNOWN, usable_policy
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.recorded_draft import RecordedDraft
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.lab.measure.arrivals import LatencyGoal
from prolepsis.lab.rehearsal.check import check, checked
from prolepsis.lab.rehearsal.forecast import forecasts
from prolepsis.lab.rehearsal.page import stops_paying
from prolepsis.lab.rehearsal.rehearsal import RehearsedServer, rehearse
from prolepsis.lab.rehearsal.trace import MeasuredTimes, Trace, TraceLine
from prolepsis.lab.virtual_engine.machine import LastCheck, Machine, ProposerCost, RehearsedSettings

CHECKED = ("end to end, 50 %", "tokens a second", "time to first token, 50 %", "time a token, 50 %")
MACHINE = Machine(
    passes=flat_cost(10.0, 0.0001),
    expected=flat_cost(10.0, 0.0001),
    proposers={"suffix": ProposerCost(free=True)},
    checks={"auto": LastCheck(at=0.0, num_requests=20, errors=dict.fromkeys(CHECKED, 0.1))},
    measured_tokens=512,
    measured_sequences=64,
)


def right(num_tokens: int, depth: int = 4) -> tuple[RecordedDraft, ...]:
    """Return drafts of a proposer that is always right, made after each token."""
    chain = tuple(range(depth))
    parents = (-1, *range(depth - 1))
    return tuple(
        RecordedDraft(0, i, depth, chain, parents, (0.9,) * depth, (0,) * depth, chain) for i in range(1, num_tokens)
    )


def line(at: float, *, output: int = 41, tenant: str = "", drafts: bool = True, prompt: int = 8) -> TraceLine:
    made = {"suffix": right(output)} if drafts else {}
    return TraceLine(at=at, prompt=prompt, output=output, tenant=tenant, drafts=made)


def test_a_plain_request_takes_a_pass_for_each_token() -> None:
    [outcome] = rehearse(Trace(lines=(line(0.0),)), RehearsedServer(machine=MACHINE, mode="off")).outcomes
    assert outcome.first_token_s == pytest.approx(0.010, abs=0.001)
    assert outcome.total_s == pytest.approx(0.410, abs=0.002)
    assert outcome.per_token_s == pytest.approx(0.010, abs=0.0001)
    assert outcome.stats.num_steps == 41


def test_right_drafts_make_it_faster_and_useless_ones_do_not() -> None:
    trace = Trace(lines=(line(0.0),))
    useless = replace(line(0.0), drafts={"suffix": tuple(one._replace(path=()) for one in right(41))})
    [plain] = rehearse(trace, RehearsedServer(machine=MACHINE, mode="off")).outcomes
    [fast] = rehearse(trace, RehearsedServer(machine=MACHINE)).outcomes
    [slow] = rehearse(Trace(lines=(useless,)), RehearsedServer(machine=MACHINE)).outcomes
    assert plain.total_s is not None
    assert fast.total_s is not None
    assert slow.total_s is not None
    assert fast.total_s < 0.4 * plain.total_s
    assert slow.total_s == pytest.approx(plain.total_s, rel=0.05)
    assert [one.stats.num_output_tokens for one in (plain, fast, slow)] == [41, 41, 41]


def test_in_a_closed_loop_the_next_request_comes_when_one_ends() -> None:
    setting = RehearsedServer(machine=MACHINE, mode="off")
    pair = rehearse(Trace(lines=(line(0.0),) * 2), setting)
    closed = rehearse(Trace(lines=(line(0.0),) * 4, at_once=2), setting)
    assert closed.seconds == pytest.approx(2 * pair.seconds, rel=0.03)
    assert [one.total_s for one in closed.outcomes] == pytest.approx([pair.outcomes[0].total_s] * 4, rel=0.03)


def test_requests_wait_for_one_another_where_places_are_few() -> None:
    trace = Trace(lines=tuple(line(0.0, drafts=False) for _ in range(3)))
    outcomes = rehearse(
        trace, RehearsedServer(machine=replace(MACHINE, engine=RehearsedSettings(max_requests=1)))
    ).outcomes
    assert [round(one.first_token_s or 0.0, 2) for one in outcomes] == [0.01, 0.42, 0.83]


def test_a_full_queue_refuses_as_the_server_does() -> None:
    server = ServerConfig(max_in_engine=1, limits=LimitTerms(max_queued=1, max_queued_per_tenant=1))
    trace = Trace(lines=tuple(line(0.001 * i, tenant="a") for i in range(3)))
    outcomes = rehearse(trace, RehearsedServer(machine=MACHINE, server=server)).outcomes
    assert [one.error is None for one in outcomes] == [True, True, False]


def test_a_prompt_that_was_read_before_is_not_read_again() -> None:
    lines = tuple(
        TraceLine(at=0.5 * i, prompt=320, output=2, blocks=tuple(range(10)), scope="a" if i < 2 else "b")
        for i in range(3)
    )
    outcomes = rehearse(Trace(lines=lines), RehearsedServer(machine=MACHINE)).outcomes
    assert [one.stats.num_cached_tokens for one in outcomes] == [0, 288, 0]


def test_a_caller_that_asked_for_no_drafts_gets_none() -> None:
    asked = Trace(lines=(replace(line(0.0), mode="off"), line(5.0)))
    plain, own = rehearse(asked, RehearsedServer(machine=MACHINE)).outcomes
    assert (plain.stats.num_steps, own.stats.num_steps < 41) == (41, True)


def test_a_policy_decides_for_whom_it_speculates() -> None:
    text = 'version: "1"\ndefault: {mode: "off"}\nrules: [{name: fast, match: {tenant: [a]}, mode: "on"}]\n'
    policy = usable_policy(text, "policy", NOTHING_KNOWN)
    trace = Trace(lines=(line(0.0, tenant="a"), line(10.0, tenant="b")))
    outcomes = rehearse(trace, RehearsedServer(machine=MACHINE, policy=policy)).outcomes
    assert [one.stats.num_drafts > 0 for one in outcomes] == [True, False]


def test_a_check_says_how_wrong_a_forecast_is() -> None:
    measured = replace(line(0.0, drafts=False), measured=MeasuredTimes(first_token_s=0.02, total_s=0.5, num_steps=41))
    trace = Trace(lines=tuple(replace(measured, at=1.0 * i) for i in range(20)))
    errors = {
        (one.what, one.share): one.error for one in check(trace, rehearse(trace, RehearsedServer(machine=MACHINE)))
    }
    assert errors["time to first token", 0.5] == pytest.approx(-0.5, abs=0.02)
    assert errors["end to end", 0.95] == pytest.approx(-0.18, abs=0.01)
    assert ("end to end", 0.99) not in errors, "of 20 requests no percentile of one in a hundred is known"
    assert errors["tokens a pass", None] == 0.0
    assert errors["tokens a second", None] == pytest.approx(19.5 / 19.41 - 1.0, abs=0.001)
    with pytest.raises(ConfigError, match="no request of the trace says what it took"):
        check(Trace(lines=(line(0.0),)), rehearse(Trace(lines=(line(0.0),)), RehearsedServer(machine=MACHINE)))


def test_a_check_compares_the_requests_whose_times_are_known() -> None:
    took = MeasuredTimes(first_token_s=0.01, total_s=0.41, num_steps=41)
    measured, unknown = replace(line(0.0, drafts=False), measured=took), line(5.0, output=400, drafts=False)
    trace = Trace(lines=(measured, replace(measured, at=2.0), unknown))
    machine, [compared] = checked(RehearsedServer(machine=MACHINE, mode="off"), [trace])
    assert machine.checks["off"].num_requests == 2
    assert machine.checks["off"].errors["end to end, 50 %"] == pytest.approx(0.0, abs=0.02)
    assert [one.figure for one in compared if one.share is None] == ["tokens a pass", "tokens a second"]


def test_a_forecast_finds_the_load_at_which_speculation_stops_paying() -> None:
    """A pass takes as long as its tokens: alone drafts that are mostly wrong pay, among many they do not."""
    costly = replace(MACHINE, passes=flat_cost(10.0, 2.0), expected=flat_cost(10.0, 2.0))
    poor = tuple(one._replace(path=one.path[: one.position % 2]) for one in right(41))
    trace = Trace(lines=tuple(replace(line(0.5 * i), drafts={"suffix": poor}) for i in range(40)))
    loads = [(f"{rate:g}x", trace.scaled(rate=rate)) for rate in (0.5, 4.0, 32.0)]
    pairs = forecasts(loads, RehearsedServer(machine=costly), LatencyGoal())
    assert [(plain.mode, own.mode) for plain, own in pairs] == [("off", "auto")] * 3
    alone = pairs[0]
    plain_s, own_s = (side.percentiles["end to end"]["p50"] or 0.0 for side in alone)
    assert 0.0 < own_s < 0.9 * plain_s
    assert alone[0].num_at_once < pairs[1][0].num_at_once < pairs[2][0].num_at_once
    by_load = stops_paying([pairs], 40, costly)
    assert by_load["0.5x"].mode == "on"
    assert str(by_load["32x"]).startswith("not known: the error of the forecast (10 %) is larger than the effect")
    assert [*stops_paying([pairs[::-1]], 40, costly)] == ["0.5x", "4x", "32x"], "the lightest load first"
    assert {str(advised) for advised in stops_paying([pairs], 19, costly).values()} == {"not known: 19 requests of 20"}


def test_a_forecast_says_which_passes_were_not_measured() -> None:
    crowd = Trace(lines=tuple(line(0.0, prompt=100) for _ in range(8)))
    for most, missing in (
        ({"measured_tokens": 1024}, None),
        ({}, "passes of 705 tokens, above 512, were not measured"),
        ({"measured_tokens": 1024, "measured_sequences": 4}, "passes of 8 sequences, above 4, were not measured"),
    ):
        assert rehearse(crowd, RehearsedServer(machine=replace(MACHINE, **most))).not_measured == missing  # type: ignore[arg-type]


def test_what_a_policy_pins_is_decoded_plainly_all_the_same_to_be_compared() -> None:
    text = 'version: "1"\nrules: [{name: all, match: {}, mode: "on", pinned: true}]\n'
    setting = RehearsedServer(machine=MACHINE, policy=usable_policy(text, "policy", NOTHING_KNOWN))
    [(plain, own)] = forecasts([("1x", Trace(lines=(line(0.0),)))], setting, LatencyGoal())
    assert (plain.num_refused, own.num_refused) == (0, 0)
    assert plain.tokens_a_pass == 1.0 < own.tokens_a_pass


def test_a_trace_without_drafts_takes_those_of_a_recording() -> None:
    bare = Trace(lines=(line(0.0, drafts=False), line(1.0)))
    given = bare.with_drafts_of(Trace(lines=(line(0.0, output=3),)))
    assert [len(one.drafts["suffix"]) for one in given.lines] == [2, 40]
    with pytest.raises(ConfigError, match="has no drafts"):
        bare.with_drafts_of(Trace(lines=(line(0.0, drafts=False),)))


def test_the_same_seed_gives_the_same_forecast_and_another_one_another() -> None:
    machine = replace(MACHINE, scatter=((0.9, 1.0, 1.3),) * 5)
    trace = Trace(lines=tuple(line(0.1 * i) for i in range(10)))

    def ends(seed: int) -> list[float | None]:
        return [one.total_s for one in rehearse(trace, RehearsedServer(machine=machine, seed=seed)).outcomes]

    assert ends(1) == ends(1) != ends(2)


def test_each_request_is_compared_with_itself_by_traffic_class() -> None:
    useless = tuple(one._replace(path=()) for one in right(41))
    lines = [replace(line(0.5 * i), route="/v1/chat/completions") for i in range(4)]
    lines += [replace(line(0.5 * i, prompt=600), drafts={"suffix": useless}) for i in range(4, 6)]
    [(plain, own)] = forecasts([("1x", Trace(lines=tuple(lines)))], RehearsedServer(machine=MACHINE), LatencyGoal())
    assert plain.classes == {}
    fast, slow = own.classes["chat-completions/standard/free/short"], own.classes["none/standard/free/medium"]
    assert (fast.num_requests, fast.share) == (4, 1.0)
    assert fast.speedup > 2.0
    assert (slow.num_requests, slow.share) == (2, 0.0)
    assert slow.speedup == pytest.approx(1.0, abs=0.05)
    assert own.device_s_per_token < 0.5 * plain.device_s_per_token


def test_a_free_proposer_that_was_never_asked_is_not_asked_and_a_costly_one_may_be() -> None:
    """Of the free one it is known, where any draft was recorded: it would have been asked in each step."""

    def total_s(*, drafts: bool = True, **more: ProposerCost) -> float:
        machine = replace(MACHINE, proposers={**MACHINE.proposers, **more})
        [outcome] = rehearse(Trace(lines=(line(0.0, drafts=drafts),)), RehearsedServer(machine=machine)).outcomes
        return outcome.total_s or 0.0

    alone = total_s()
    assert total_s(grammar=ProposerCost(call_ms=50.0, free=True)) == alone
    assert total_s(suffix=ProposerCost(call_ms=5.0, free=True)) > 1.2 * alone
    assert total_s(draft_head=ProposerCost(call_ms=50.0)) > 1.2 * alone
    assert total_s(drafts=False, grammar=ProposerCost(call_ms=50.0, free=True)) > 1.2 * total_s(drafts=False)
