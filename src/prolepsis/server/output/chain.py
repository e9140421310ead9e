"""All policies over one answer, in their order: what each lets through is what the next one sees."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from prolepsis.server.output.link import Link, Passed
from prolepsis.server.output.pieces import Piece
from prolepsis.server.output.policy import AnswerFacts, Decision, OutputPolicy
from prolepsis.server.output.workers import Workers
from prolepsis.telemetry.contract import ContractMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy and how it is kept within bounds."""

    name: str
    policy: OutputPolicy
    fails_open: bool
    """What happens to an answer where the policy fails: it passes unread, or it ends."""
    timeout_s: float
    """Longest time for the tokens of one step."""
    max_held: int
    """Most characters that it may hold back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step's tokens became. `num_tokens`: how many of them were read, the last where the answer was stopped."""

    pieces: list[Piece]
    num_tokens: int
    stopped_by: str | None = None
    """NAME: REASON of the policy that ended the answer."""


class OutputPolicies:
    """What is configured; makes a chain for each answer. Belongs to one event loop."""

    def __init__(self, loaded: Sequence[LoadedPolicy] = (), metrics: ContractMetrics | None = None) -> None:
        self.loaded = tuple(loaded)
        self._metrics = metrics
        self._workers = Workers()

    def chain(self, answer: AnswerFacts) -> "Chain | None":
        """Return what reads this answer; None where nobody does."""
        links: list[tuple[LoadedPolicy, Link]] = []
        for loaded in self.loaded:
            try:
                reader = loaded.policy.begin(answer)
            except Exception as error:  # contained: it is somebody else's code
                log.warning("output_policy_failed", policy=loaded.name, kind="raised", error=repr(error))
                if loaded.fails_open:
                    self._count_fault(loaded, "raised")
                    continue
                reader = _Refusing()
            if reader is not None:
                links.append((loaded, Link(reader, fails_open=loaded.fails_open, max_held=loaded.max_held)))
        return Chain(links, self, self._workers) if links else None

    def count(self, loaded: LoadedPolicy, passed: Passed, seconds: float) -> None:
        """Count what a policy did with a step's tokens."""
        if self._metrics is None:
            return
        self._metrics.seconds.labels(loaded.name).inc(seconds)
        if passed.num_rewrites:
            self._metrics.decisions.labels(loaded.name, "rewrite").inc(passed.num_rewrites)
        if passed.held:
            self._metrics.decisions.labels(loaded.name, "hold_back").inc()
        if passed.stopped_by is not None:
            self._metrics.decisions.labels(loaded.name, "stop").inc()
        if passed.fault is not None:
            self._count_fault(loaded, passed.fault)

    def _count_fault(self, loaded: LoadedPolicy, kind: str) -> None:
        if self._metrics is not None:
            self._metrics.faults.labels(loaded.name, kind).inc()


class Chain:
    """Reads one answer."""

    def __init__(self, links: Sequence[tuple[LoadedPolicy, Link]], told: OutputPolicies, workers: Workers) -> None:
        self._links = links
        self._told = told
        self._workers = workers

    async def take(self, tokens: Sequence[Sequence[Piece]], *, ended: bool) -> Outcome:
        """Take one step's tokens (at least one) and return what goes to the client of the answer so far.

        Every policy sees them one by one, so that steps of several tokens make no difference.
        """
        current: list[list[Piece]] = [list(pieces) for pieces in tokens]
        stopped_by: str | None = None
        for loaded, link in self._links:
            if not link.reads:
                continue
            began = time.perf_counter()
            passed = await self._ask(loaded, link, current, ended=ended or stopped_by is not None)
            self._told.count(loaded, passed, time.perf_counter() - began)
            link.settle(passed)
            current = passed.tokens
            if passed.stopped_by is not None:
                stopped_by = f"{loaded.name}: {passed.stopped_by}"
            if passed.fault is not None:
                log.warning("output_policy_failed", policy=loaded.name, kind=passed.fault)
        return Outcome([piece for pieces in current for piece in pieces], len(current), stopped_by)

    async def _ask(self, loaded: LoadedPolicy, link: Link, tokens: list[list[Piece]], *, ended: bool) -> Passed:
        if loaded.policy.inline:
            return link.take(tokens, ended=ended)
        try:
            return await self._workers.run(lambda: link.take(tokens, ended=ended), loaded.timeout_s)
        except TimeoutError:
            return link.fail(tokens, "late")


class _Refusing:
    """Stands for a policy that failed before it read anything and is to fail closed."""

    def look(self, pending: str, *, ended: bool) -> Decision:
        raise RuntimeError("the policy failed at its beginning")
