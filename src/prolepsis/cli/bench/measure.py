"""Runs contenders over prompts in alternation and records what each emitted and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prolepsis.cli.bench.prompts import EncodedPrompt


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


@dataclass(slots=True)
class Run:
    """All prompts once through one contender at one concurrency, in one repeat."""

    contender: str
    concurrency: int
    repeat: int
    wall_s: float = 0.0
    bench_cpu_s: float = 0.0
    """CPU time this process used meanwhile; next to nothing while a peer runs, or the peer was disturbed."""
    outcomes: list[Outcome] = field(default_factory=list)


class Contender(Protocol):
    """An arm of our engine or a peer."""

    @property
    def name(self) -> str: ...

    async def begin(self, round_name: str) -> None:
        """Forget what earlier rounds taught it: prefix caches, indexes over past outputs."""

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> list[Outcome]:
        """Answer `prompts` with at most `concurrency` in flight, in the order of `prompts`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is run and how often."""

    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3


Notify = Callable[[str], None]
"""Called with a line about what runs now."""


async def measure(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], schedule: Schedule, notify: Notify
) -> list[Run]:
    """Run everything `schedule` says and return the runs.

    Repeats are the outer loop, so that a drift of the machine meets all contenders. At concurrency 1 they take turns
    prompt by prompt, above it set by set; who goes first rotates from turn to turn.
    """
    await _warm_up(contenders, prompts, notify)
    runs: list[Run] = []
    for repeat in range(schedule.repeats):
        for concurrency in schedule.concurrency:
            notify(f"repeat {repeat + 1} of {schedule.repeats}, concurrency {concurrency}")
            round_name = f"r{repeat}-c{concurrency}"
            for contender in contenders:
                await contender.begin(round_name)
            if concurrency == 1:
                runs += await _by_prompt(contenders, prompts, repeat)
            else:
                runs += await _by_set(contenders, prompts, repeat, concurrency)
    return runs


async def _warm_up(contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], notify: Notify) -> None:
    shortest = min(prompts, key=lambda p: len(p.token_ids))
    for contender in contenders:
        notify(f"warm-up: {contender.name}")
        await contender.begin("warm-up")
        await contender.run([shortest], 1)


async def _by_prompt(contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], repeat: int) -> list[Run]:
    runs = {c.name: Run(c.name, 1, repeat) for c in contenders}
    for i, prompt in enumerate(prompts):
        for contender in rotated(contenders, repeat + i):
            await _turn(runs[contender.name], contender, [prompt])
    return list(runs.values())


async def _by_set(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], repeat: int, concurrency: int
) -> list[Run]:
    runs = []
    for contender in rotated(contenders, repeat):
        run = Run(contender.name, concurrency, repeat)
        await _turn(run, contender, prompts)
        runs.append(run)
    return runs


async def _turn(run: Run, contender: Contender, prompts: Sequence[EncodedPrompt]) -> None:
    started, cpu = time.perf_counter(), time.process_time()
    run.outcomes += await contender.run(prompts, run.concurrency)
    run.wall_s += time.perf_counter() - started
    run.bench_cpu_s += time.process_time() - cpu


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Return the contenders in order, beginning with another one each turn."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]
