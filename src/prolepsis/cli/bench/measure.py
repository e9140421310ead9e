"""Runs contenders over prompts in alternation and records what each emitted and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prolepsis.cli.bench.prompts import EncodedPrompt
from prolepsis.core.errors import ProlepsisError

Notify = Callable[[str], None]
"""Called with a line about what runs now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt answered by one contender. Times in seconds; None where a contender does not tell."""

    prompt_id: str
    category: str
    token_ids: tuple[int, ...]
    seconds: float
    """From handing the prompt over to its last token, prefill and waiting included."""
    first_token_s: float | None = None
    queue_s: float | None = None
    compute_s: float | None = None
    num_steps: int | None = None
    """Target passes that emitted tokens."""
    proposers: tuple[tuple[str, int, int], ...] = ()
    """(proposer, tokens drafted, tokens accepted)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one call of a contender gave; the engine's own times where it tells them."""

    outcomes: list[Outcome]
    num_passes: int = 0
    forward_s: float = 0.0
    outside_forward_s: float = 0.0


@dataclass(slots=True)
class Run:
    """All prompts once through one contender at one concurrency, in one repeat."""

    contender: str
    concurrency: int
    repeat: int
    wall_s: float = 0.0
    bench_cpu_s: float = 0.0
    """CPU time of this process meanwhile: next to nothing while a peer runs, or the peer was disturbed."""
    num_passes: int = 0
    forward_s: float = 0.0
    outside_forward_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(outcome.token_ids) for outcome in self.outcomes)


class Contender(Protocol):
    """An arm of our engine or a peer."""

    @property
    def name(self) -> str: ...

    @property
    def max_concurrency(self) -> int | None:
        """None: any."""

    @property
    def expendable(self) -> bool:
        """Whether its failure costs only its own figures (a peer) and not the measurement (an arm)."""

    async def begin(self, round_name: str) -> None:
        """Forget what earlier rounds taught it: prefix caches, indexes over past outputs."""

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> Turn:
        """Answer `prompts` with at most `concurrency` in flight; outcomes in the order of `prompts`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is run and how often."""

    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3


@dataclass(slots=True)
class Measurement:
    """Runs of contenders that lasted, reasons of those that failed."""

    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


async def measure(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], schedule: Schedule, notify: Notify
) -> Measurement:
    """Run everything `schedule` says.

    Repeats are the outer loop, so that a drift of the machine meets all contenders. At concurrency 1 they take turns
    prompt by prompt, above it set by set; who goes first rotates from turn to turn. Raises the error of a contender
    that is not expendable.
    """
    done = Measurement()
    shortest = min(prompts, key=lambda p: len(p.token_ids))
    for contender in contenders:
        notify(f"warm-up: {contender.name}")
        await _begin(done, contender, "warm-up")
        await _turn(done, Run(contender.name, 1, -1), contender, [shortest])
    for repeat in range(schedule.repeats):
        for concurrency in schedule.concurrency:
            notify(f"repeat {repeat + 1} of {schedule.repeats}, concurrency {concurrency}")
            able = [c for c in contenders if c.max_concurrency is None or c.max_concurrency >= concurrency]
            for contender in able:
                await _begin(done, contender, f"r{repeat}-c{concurrency}")
            done.runs += await _round(done, able, prompts, concurrency, repeat)
    done.runs = [run for run in done.runs if run.contender not in done.failed]
    return done


async def _round(
    done: Measurement, contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], concurrency: int, repeat: int
) -> list[Run]:
    runs = {c.name: Run(c.name, concurrency, repeat) for c in contenders}
    turns = [[prompt] for prompt in prompts] if concurrency == 1 else [list(prompts)]
    for i, turn in enumerate(turns):
        for contender in rotated(contenders, repeat + i):
            await _turn(done, runs[contender.name], contender, turn)
    return list(runs.values())


async def _begin(done: Measurement, contender: Contender, round_name: str) -> None:
    if contender.name in done.failed:
        return
    try:
        await contender.begin(round_name)
    except ProlepsisError as error:
        _lose(done, contender, error)


async def _turn(done: Measurement, run: Run, contender: Contender, prompts: Sequence[EncodedPrompt]) -> None:
    if contender.name in done.failed:
        return
    started, cpu = time.perf_counter(), time.process_time()
    try:
        turn = await contender.run(prompts, run.concurrency)
    except ProlepsisError as error:
        _lose(done, contender, error)
        return
    run.wall_s += time.perf_counter() - started
    run.bench_cpu_s += time.process_time() - cpu
    run.num_passes += turn.num_passes
    run.forward_s += turn.forward_s
    run.outside_forward_s += turn.outside_forward_s
    run.outcomes += turn.outcomes


def _lose(done: Measurement, contender: Contender, error: ProlepsisError) -> None:
    if not contender.expendable:
        raise error
    done.failed[contender.name] = str(error)


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Return the contenders in order, beginning with another one each turn."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]
