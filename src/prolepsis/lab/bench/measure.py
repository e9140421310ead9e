"""Runs contenders over prompts in alternation and records what each emitted and how long it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prolepsis.lab.bench.prompts import EncodedPrompt

Notify = Callable[[str], None]
"""Called with a line about the current step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt answered by one contender. Times in seconds; None where a contender does not report them."""

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
    """The result of one call of a contender, with the engine's own times where it reports them."""

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
    num_passes: int = 0
    forward_s: float = 0.0
    outside_forward_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(len(outcome.token_ids) for outcome in self.outcomes)


class Contender(Protocol):
    """An arm of our engine, or another engine."""

    @property
    def name(self) -> str: ...

    async def begin(self, round_name: str) -> None:
        """Forget what earlier rounds taught it: prefix caches, indexes over past outputs."""

    async def run(self, prompts: Sequence[EncodedPrompt], concurrency: int) -> Turn:
        """Answer `prompts` with at most `concurrency` in flight; outcomes in the order of `prompts`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Plan of a run."""

    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3


async def measure(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], schedule: Schedule, notify: Notify
) -> list[Run]:
    """Run everything that `schedule` says; raises the error of a contender that fails.

    Repeats are the outer loop, so that a drift of the machine affects all contenders. At concurrency 1 they take turns
    prompt by prompt, above it set by set; the first one rotates from turn to turn.
    """
    runs: list[Run] = []
    shortest = min(prompts, key=lambda p: len(p.token_ids))
    for contender in contenders:
        notify(f"warm-up: {contender.name}")
        await contender.begin("warm-up")
        await contender.run([shortest], 1)
    for repeat in range(schedule.repeats):
        for concurrency in schedule.concurrency:
            notify(f"repeat {repeat + 1} of {schedule.repeats}, concurrency {concurrency}")
            for contender in contenders:
                await contender.begin(f"r{repeat}-c{concurrency}")
            runs += await _round(contenders, prompts, concurrency, repeat)
    return runs


async def _round(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], concurrency: int, repeat: int
) -> list[Run]:
    runs = {c.name: Run(c.name, concurrency, repeat) for c in contenders}
    turns = [[prompt] for prompt in prompts] if concurrency == 1 else [list(prompts)]
    for i, turn in enumerate(turns):
        for contender in rotated(contenders, repeat + i):
            await _turn(runs[contender.name], contender, turn)
    return list(runs.values())


async def _turn(run: Run, contender: Contender, prompts: Sequence[EncodedPrompt]) -> None:
    started = time.perf_counter()
    turn = await contender.run(prompts, run.concurrency)
    run.wall_s += time.perf_counter() - started
    run.num_passes += turn.num_passes
    run.forward_s += turn.forward_s
    run.outside_forward_s += turn.outside_forward_s
    run.outcomes += turn.outcomes


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Return the contenders in order, beginning with another one each turn."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]
