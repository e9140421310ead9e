"""Contenders answer the same prompts in turns: ways for one engine to speculate (arms), and other engines."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from prolepsis.core.ask import ask
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ConfigError
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.terminal.config import listed
from prolepsis.lab.measure.arrivals import in_flight
from prolepsis.lab.measure.prompts import EncodedPrompt

PLAIN, AUTO = "plain", "auto"
Notify = Callable[[str], None]
"""Called with a line about the current step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt answered by one contender. Times in seconds; None where a contender does not report them."""

    prompt_id: str
    category: str
    token_ids: tuple[int, ...]
    seconds: float  # from handing the prompt over to its last token, prefill and waiting included
    first_token_s: float | None = None
    queue_s: float | None = None
    compute_s: float | None = None
    num_steps: int | None = None  # target passes that emitted tokens
    proposers: tuple[tuple[str, int, int], ...] = ()  # (proposer, tokens drafted, tokens accepted)


@dataclass(slots=True)
class Run:
    """All prompts once through one contender at one concurrency, in one repeat."""

    contender: str
    concurrency: int
    repeat: int = 0
    wall_s: float = 0.0
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

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        """Answer `prompts`, with at most the run's number in flight, and add outcomes in their order to the run."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Plan of a measurement."""

    concurrency: tuple[int, ...] = (1,)
    repeats: int = 3


async def measure(
    contenders: Sequence[Contender], prompts: Sequence[EncodedPrompt], schedule: Schedule, notify: Notify
) -> list[Run]:
    """Run everything that `schedule` says; raises the error of a contender that fails.

    Repeats are the outer loop, so that a drift of the machine affects all contenders. At concurrency 1 they take turns
    prompt by prompt, above it set by set; the first one rotates from turn to turn.
    """
    measured: list[Run] = []
    shortest = min(prompts, key=lambda p: len(p.token_ids))
    for contender in contenders:
        notify(f"warm-up: {contender.name}")
        await contender.begin("warm-up")
        await contender.answer([shortest], Run(contender.name, 1))
    for repeat in range(schedule.repeats):
        for concurrency in schedule.concurrency:
            notify(f"repeat {repeat + 1} of {schedule.repeats}, concurrency {concurrency}")
            for contender in contenders:
                await contender.begin(f"r{repeat}-c{concurrency}")
            runs = {contender.name: Run(contender.name, concurrency, repeat) for contender in contenders}
            for i, turn in enumerate([[prompt] for prompt in prompts] if concurrency == 1 else [list(prompts)]):
                for contender in rotated(contenders, repeat + i):
                    started, run = time.perf_counter(), runs[contender.name]
                    await contender.answer(turn, run)
                    run.wall_s += time.perf_counter() - started
            measured += runs.values()
    return measured


def rotated(contenders: Sequence[Contender], turn: int) -> list[Contender]:
    """Return the contenders in order, beginning with another one each turn."""
    first = turn % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def parse_arms(text: str, proposers: Sequence[str], num_speculative_tokens: int = 24) -> Mapping[str, SpecPlan]:
    """Return the plans of a comma-separated list; `plain` comes first whether named or not, as the base of speedups.

    `plain` is no speculation, `auto` the engine's own decision over all its proposers, a proposer's name that proposer
    alone, and NAME@DEPTH drafts of exactly that many tokens where possible. Raises `ConfigError` for anything else.
    """
    plans: dict[str, SpecPlan] = {}
    for version, name in enumerate(dict.fromkeys([PLAIN, *listed(text)]), 1):
        base, at, depth = name.partition("@")
        if name != PLAIN and base != AUTO and base not in proposers:
            allowed = f"{', '.join((PLAIN, AUTO, *proposers))}, all except plain also as NAME@DEPTH"
            raise ConfigError(f"arm {name!r} is unknown; allowed: {allowed}", param="arms")
        if at and not (depth.isascii() and depth.isdigit() and int(depth) > 0):
            raise ConfigError(f"arm {name!r} has depth {depth!r}; allowed: 1 or more", param="arms")
        fixed, most = int(depth) if at else None, 0 if name == PLAIN else max(num_speculative_tokens, int(depth or 0))
        chosen = None if base in (PLAIN, AUTO) else (base,)
        plans[name] = SpecPlan(version, most, chosen, fixed, f"bench arm {name}")
    return plans


@dataclass(slots=True)
class EngineArm:
    """Puts its plan into effect before each turn.

    Each round has a tenant scope of its own: nothing cached or learned in another round, or by another arm, is visible
    in it. Within a round the shared indexes learn from prompt to prompt, as they do in service.
    """

    name: str
    plan: SpecPlan
    client: EngineClient
    params: SamplingParams
    seeds: Mapping[str, int] = field(default_factory=dict)  # by prompt id
    _scope: str = ""
    _num_requests: int = 0

    async def begin(self, round_name: str) -> None:
        self._scope = f"bench {self.name} {round_name}"

    async def answer(self, prompts: Sequence[EncodedPrompt], run: Run) -> None:
        self.client.send(ApplyPlan(self.plan))
        run.outcomes += await in_flight([partial(self._one, prompt) for prompt in prompts], run.concurrency)

    async def _one(self, prompt: EncodedPrompt) -> Outcome:
        self._num_requests += 1
        request = GenerateRequest(
            request_id=f"{self._scope} {self._num_requests}",
            prompt_token_ids=prompt.token_ids,
            params=replace(self.params, seed=self.seeds.get(prompt.id, self.params.seed)),
            cache_salt=self._scope,
        )
        answer = await ask(self.client, request)
        stats = answer.stats
        return Outcome(
            prompt.id,
            prompt.category,
            answer.token_ids,
            answer.seconds,
            first_token_s=answer.first_token_s,
            queue_s=stats.queue_s,
            compute_s=stats.compute_s,
            num_steps=stats.num_steps,
            proposers=tuple((n, c.num_draft_tokens, c.num_accepted) for n, c in sorted(stats.proposers.items())),
        )
