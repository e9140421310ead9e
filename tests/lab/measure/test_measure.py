"""Alternation of contenders, figures and their spread."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.control.statistics.percentile import percentile
from prolepsis.core.ask import ask
from prolepsis.core.errors import DeadlineExceeded, EngineError
from prolepsis.core.events import Aborted, Failed
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.contenders import (
    EngineArm,
    Outcome,
    Run,
    Schedule,
    measure,
    parse_arms,
    rotated,
)
from prolepsis.lab.measure.prompts import EncodedPrompt
from prolepsis.lab.measure.report import Figures, rate, spread
from tests.fake_client import FakeEngineClient
from tests.lab.measure.fakes import NUM_TOKENS, PROPOSERS, table_client
from tests.virtual_time import virtual_time

PROMPTS = (EncodedPrompt("p1", "code", (5, 6, 7)), EncodedPrompt("p2", "chat", (5,)))


class LoggingContender:
    """Records its turns; fails at the turn numbered `fails_at`."""

    def __init__(self, name: str, log: list[str], *, fails_at: int | None = None) -> None:
        self.name = name
        self._log = log
        self._fails_at = fails_at
        self._turns = 0

    async def begin(self, round_name: str) -> None:
        self._log.append(f"{self.name} begins {round_name}")

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        self._turns += 1
        if self._turns == self._fails_at:
            raise EngineError("broke")
        self._log.append(f"{self.name} {'+'.join(p.id for p in prompts)} x{run.concurrency}")
        run.outcomes += [Outcome(p.id, p.category, (1, 2), 0.5) for p in prompts]


async def test_contenders_alternate_prompt_by_prompt_and_the_first_rotates() -> None:
    log: list[str] = []
    contenders = [LoggingContender("a", log), LoggingContender("b", log)]
    runs = await measure(contenders, PROMPTS, Schedule((1, 4), 2), lambda line: None)
    assert log == [
        *("a begins warm-up", "a p2 x1", "b begins warm-up", "b p2 x1"),
        *("a begins r0-c1", "b begins r0-c1", "a p1 x1", "b p1 x1", "b p2 x1", "a p2 x1"),
        *("a begins r0-c4", "b begins r0-c4", "a p1+p2 x4", "b p1+p2 x4"),
        *("a begins r1-c1", "b begins r1-c1", "b p1 x1", "a p1 x1", "a p2 x1", "b p2 x1"),
        *("a begins r1-c4", "b begins r1-c4", "b p1+p2 x4", "a p1+p2 x4"),
    ]
    found = sorted((r.contender, r.concurrency, r.repeat, len(r.outcomes)) for r in runs)
    assert found == [(name, concurrency, repeat, 2) for name in "ab" for concurrency in (1, 4) for repeat in (0, 1)]


async def test_a_failing_arm_ends_the_measurement() -> None:
    broken = LoggingContender("a", [], fails_at=2)
    with pytest.raises(EngineError, match="broke"):
        await measure([broken], PROMPTS, Schedule(), lambda line: None)


def test_rotation() -> None:
    log: list[str] = []
    contenders = [LoggingContender(name, log) for name in "abc"]
    assert [c.name for c in rotated(contenders, 4)] == ["b", "c", "a"]


async def test_an_arm_applies_its_plan_and_has_a_fresh_scope_each_round() -> None:
    client = table_client()
    plain, suffix = (
        EngineArm(name, plan, client, SamplingParams(), {"p1": 7})
        for name, plan in parse_arms("suffix", PROPOSERS).items()
    )
    await plain.begin("r0")
    slow, quick = Run("plain", 1), Run("suffix", 2)
    await plain.answer(PROMPTS[:1], slow)
    await suffix.begin("r0")
    await suffix.answer(PROMPTS, quick)
    await suffix.begin("r1")
    await suffix.answer(PROMPTS[:1], Run("suffix", 1))
    assert [plan.num_speculative_tokens for plan in client.plans] == [0, 24, 24]
    assert [request.cache_salt for request in client.requests] == [
        *("bench plain r0", "bench suffix r0", "bench suffix r0", "bench suffix r1"),
    ]
    assert len({request.request_id for request in client.requests}) == 4
    assert client.requests[0].params.seed == 7
    assert slow.outcomes[0].token_ids == quick.outcomes[0].token_ids
    assert (slow.outcomes[0].num_steps, quick.outcomes[0].num_steps) == (NUM_TOKENS, NUM_TOKENS // 3)
    assert quick.outcomes[0].proposers == (("suffix", 4, 4),)
    first = slow.outcomes[0].first_token_s
    assert first is not None
    assert 0 < first <= slow.outcomes[0].seconds


@pytest.mark.parametrize(
    ("terminal", "error"),
    [
        (Failed("r", DeadlineExceeded("late"), RequestStats()), DeadlineExceeded),
        (Aborted("r", RequestStats(), "shutdown"), EngineError),
    ],
)
async def test_a_request_that_does_not_finish_is_an_error(terminal: Failed | Aborted, error: type[Exception]) -> None:
    client = FakeEngineClient(lambda request: [terminal])
    with pytest.raises(error):
        await ask(client, GenerateRequest("r", (1,), SamplingParams()))


@virtual_time
async def test_in_flight_keeps_the_order_and_the_limit() -> None:
    running = most = 0

    async def job(i: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - i))
        running -= 1
        return i

    jobs = [lambda i=i: job(i) for i in range(5)]
    assert await in_flight(jobs, 2) == [0, 1, 2, 3, 4]
    assert most == 2


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.floats(0, 1))
def test_a_percentile_lies_among_the_values(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert min(values) <= found <= max(values) or found == pytest.approx(max(values))
    assert percentile(values, 0.0) == min(values)
    assert percentile(values, 1.0) == max(values)


def test_percentile_and_spread_of_nothing() -> None:
    assert percentile([], 0.5) is None
    assert spread([]) == {"median": None, "min": None, "max": None}
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5


def _run(name: str, repeat: int, seconds: float, *, concurrency: int = 1, wall_s: float = 1.0, token: int = 1) -> Run:
    outcomes = [
        Outcome("p1", "code", (token,) * 10, seconds, 0.1, 0.01, seconds - 0.01, 5),
        Outcome("p2", "chat", tuple(range(30)), 3 * seconds, 0.2, 0.02, seconds - 0.02, 10),
    ]
    return Run(name, concurrency, repeat, wall_s, outcomes=outcomes)


def test_speedup_is_the_ratio_within_one_repeat() -> None:
    # the machine halves its speed from repeat to repeat; the ratio stays
    runs = [_run("plain", r, 2.0 * 2**r) for r in range(3)] + [_run("auto", r, 1.0 * 2**r) for r in range(3)]
    arm = Figures(runs).arm("auto", 1)
    assert arm["speedup"] == {"median": 2.0, "min": 2.0, "max": 2.0, "repeats": [2.0, 2.0, 2.0]}
    assert arm["tokens_per_s"] == {"median": 5.0, "min": 2.5, "max": 10.0, "repeats": [10.0, 5.0, 2.5]}
    assert arm["tokens_a_pass"]["median"] == pytest.approx(40 / 15)


def test_figures_of_a_category_see_its_prompts_only() -> None:
    figures = Figures([_run("plain", 0, 2.0)])
    assert figures.categories == ["all", "code", "chat"]
    code = figures.arm("plain", 1, "code")
    assert code["tokens_per_s"]["median"] == 5.0
    assert code["tokens_a_pass"]["median"] == 2.0
    assert code["latency_ms"] == {"median": 2000.0, "min": 2000.0, "max": 2000.0, "p95": 2000.0}
    assert code["ttft_ms"]["median"] == pytest.approx(100.0)
    assert code["queue_ms"]["median"] == pytest.approx(10.0)


def test_throughput_of_many_at_once_is_over_wall_time() -> None:
    run = _run("plain", 0, 2.0, concurrency=4, wall_s=5.0)
    assert rate(run, run.outcomes) == 8.0
    level = Figures([run]).arm("plain", 4)
    assert level["tokens_per_s"]["median"] == 8.0
    assert level["latency_ms"]["median"] == 4000.0


def test_differing_outputs_are_found_in_any_repeat() -> None:
    runs = [_run("plain", r, 1.0) for r in range(2)] + [_run("auto", 0, 1.0), _run("auto", 1, 1.0, token=9)]
    assert Figures(runs).differing("auto", "plain", 1) == (2, ["p1"])
    assert Figures(runs).differing("plain", "plain", 1) == (2, [])
