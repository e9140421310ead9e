"""The engines that may serve a request: which are alive, which can continue a stream, how lost ones are replaced."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.core.config import HeadProposerName
from prolepsis.core.continuation import Continuation, Continued, NotContinuedReason, OutsideGroup
from prolepsis.core.errors import DeadlineExceeded, NotContinued, ProlepsisError
from prolepsis.core.messages import ApplyPlan, StopRun
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineClient, EngineInfo, HeadSwapped
from prolepsis.failover.stream import KeptStream
from prolepsis.telemetry.declare import counter, histogram

log = structlog.get_logger(__name__)

_CLOSE_S = 15.0
"""A lost engine is not waited for any longer; one in another process needs 10 s to be killed."""

StartClient = Callable[[], Awaitable[EngineClient]]
"""Returns a client of the engine that takes a lost one's place: built in this process, started in another, or connected
to again. Raises what kept it from starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """Defaults suit engines of one machine."""

    outside_group: OutsideGroup = "refuse"
    max_losses: int = 3
    """Engines that one request may lose and continue: it may be the one that ends them."""
    max_failed_steps: int = 1
    """How many of these losses may be failed steps: the engine lives on, and gives up after several in a row."""
    wait_s: float = 60.0
    """Longest wait of a request for an engine."""
    check_s: float = 0.25
    """Between two looks at the health of engines; one that is not alive at two in a row is lost."""
    max_restarts: int = 5
    """Starts in a row of one engine, each ended within `steady_s`; after them it stays away."""
    steady_s: float = 60.0
    backoff_s: float = 0.5
    """Before the second start in a row; it doubles."""


RestartResult = Literal["started", "failed"]


class FailoverMetrics:
    """Counters of one front door over all of its engines."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests that lost their engine and went on in another, by why it was lost and whether exactly"
        self._continued = counter(registry, "continuations", text, "reason", "result")
        text = "Time that clients waited for the next token of a request that lost its engine and went on"
        self._pauses = histogram(registry, "continuation_pause_seconds", text)
        text = "Requests that lost their engine and ended with it, by why"
        self._refused = counter(registry, "continuations_refused", text, "reason")
        text = "Engines that were started again after a loss, and starts that failed"
        self._restarts = counter(registry, "engine_restarts", text, "result")
        for result in get_args(RestartResult):
            self._restarts.labels(result)  # an alert on a rise needs the 0 before it

    def continued(self, one: Continued, *, exact: bool) -> None:
        """A request has its first token after a loss."""
        self._continued.labels(one.loss, "exact" if exact else "not_exact").inc()
        self._pauses.observe(one.pause_s)

    def refused(self, reason: NotContinuedReason) -> None:
        """A request ended with its engine."""
        self._refused.labels(reason).inc()

    def restarted(self, result: RestartResult) -> None:
        """An engine was to be started again."""
        self._restarts.labels(result).inc()


class Member:
    """One engine's place. It is empty while its engine is lost and not started again."""

    def __init__(self, client: EngineClient, start: StartClient | None = None) -> None:
        """Without `start` a lost engine stays away."""
        self.client: EngineClient | None = client
        self.info = client.info
        """Facts about the engine when it started, used while there is none."""
        self.start = start
        self.streams: set[KeptStream] = set()
        self.is_suspect = False
        """Its engine was not alive when last looked at."""
        self.detail = ""
        """Reason why the place is empty."""
        self.num_starts = 0
        """Starts in a row."""
        self.serves_since = -float("inf")
        """Since when it had its engine."""

    @property
    def may_return(self) -> bool:
        """Whether another engine will be started if this one is lost."""
        return self.start is not None

    @property
    def rank(self) -> tuple[bool, int]:
        """Ready engines come first, then those with few streams."""
        return (self.client is None or not self.client.health().ready, len(self.streams))


class Members:
    """Chooses engines for streams and starts lost ones again; belongs to one event loop."""

    def __init__(
        self,
        members: Sequence[Member],
        settings: FailoverSettings,
        metrics: FailoverMetrics,
        prepare: Callable[[EngineClient], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`prepare` brings an engine that was just started up to date, before it serves."""
        self.all = tuple(members)
        self._settings = settings
        self._metrics = metrics
        self._prepare = prepare
        self._clock = clock
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False

    @property
    def present(self) -> list[Member]:
        """The members that have an engine which is alive."""
        return [one for one in self.all if one.client is not None and one.client.health().alive]

    async def place(self, stream: KeptStream, last: object) -> Member | None:
        """Return the member that serves the stream next, another than `last` if there is one.

        Waits while one may return. None: the stream ended meanwhile. Raises `NotContinued`, and `DeadlineExceeded`
        where the stream has less time than an engine may take to return.
        """
        wait_s, left_s = self._settings.wait_s, stream.left_s
        try:
            async with asyncio.timeout(wait_s if left_s is None else min(wait_s, left_s)):
                while not (stream.is_aborted or self.is_closing):
                    found = self._choose(stream, last)
                    if found is not None:
                        return found
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            limit_s = stream.source.deadline_s
            if limit_s is not None and left_s is not None and left_s < wait_s:
                raise DeadlineExceeded.unfinished(limit_s, ", as no engine was available") from None
            raise NotContinued(f"no engine was available within {wait_s:g} s", reason="no_engine") from None
        return None

    def wake(self) -> None:
        """Let the streams that wait look again: an engine returned, a stream ended."""
        self._changed.set()

    def lose(self, member: Member, client: EngineClient, detail: str) -> None:
        """A member's engine is lost; another is started in its place. What is known already is ignored."""
        if member.client is not client or self.is_closing:
            return
        member.client, member.is_suspect, member.detail = None, False, detail
        log.error("engine_lost", detail=detail, restarts=member.start is not None)
        task = asyncio.get_running_loop().create_task(self._replace(member, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.wake()

    def check(self) -> list[Member]:
        """Look at the engines' health; return the members whose engines were not alive twice."""
        lost: list[Member] = []
        for member in self.all:
            is_bad = member.client is not None and not member.client.health().alive
            if is_bad and member.is_suspect:
                lost.append(member)
            member.is_suspect = is_bad
        return lost

    async def close(self) -> None:
        """Start nothing more, and close all engines."""
        self.is_closing = True
        self.wake()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.client.close() for one in self.all if one.client is not None))

    def _choose(self, stream: KeptStream, last: object) -> Member | None:
        present = self.present
        fitting = [one for one in present if one.client is not None and not differences(stream, one.client.info)]
        if not fitting and self._settings.outside_group == "continue":
            fitting = present
        if fitting:
            return min(fitting, key=lambda one: (one is last, *one.rank))
        if any(one.may_return for one in self.all if one not in present):  # some may be lost, and not known to be
            return None
        if not present:
            raise NotContinued("no engine is left", reason="no_engine")
        assert present[0].client is not None, "it is present"
        found = "; ".join(differences(stream, present[0].client.info))
        raise NotContinued(f"the engines left are of another exact group: {found}", reason="other_group")

    async def _replace(self, member: Member, lost: EngineClient) -> None:
        with suppress(Exception):  # contained: it is lost, and an error at its end changes nothing
            await asyncio.wait_for(lost.close(), _CLOSE_S)
        del lost  # its memory is free before another engine asks for some
        if self._clock() - member.serves_since > self._settings.steady_s:
            member.num_starts = 0
        while member.client is None and member.start is not None:
            if member.num_starts >= self._settings.max_restarts:
                log.error("engine_given_up", starts=member.num_starts)
                member.start = None
                break
            if member.num_starts:
                await self._sleep(self._settings.backoff_s * 2 ** (member.num_starts - 1))
            member.num_starts += 1
            await self._start(member, member.start)
        self.wake()

    async def _start(self, member: Member, start: StartClient) -> None:
        began = self._clock()
        try:
            client = await start()
            try:
                await self._prepare(client)
            except BaseException:
                await client.close()  # the next one needs its memory
                raise
        except Exception as error:  # contained: it is tried again, a few times
            log.exception("engine_not_started")
            self._metrics.restarted("failed")
            member.detail = f"the engine did not start: {error}"
            return
        self._metrics.restarted("started")
        member.serves_since = self._clock()
        log.info("engine_started_again", seconds=round(member.serves_since - began, 3))
        member.client, member.info, member.detail = client, client.info, ""


def differences(stream: KeptStream, info: EngineInfo) -> tuple[str, ...]:
    """Return why an engine is not known to continue with the stream's very tokens; empty: it does."""
    if stream.group is None:
        return ()
    found = Continuation(emitted=(), group=stream.group).differences(info.exact_group)
    if info.max_model_len != stream.max_model_len:
        found += (f"max_model_len {stream.max_model_len} recorded, {info.max_model_len} here",)
    return found


class Controls:
    """The plan, the stopped runs and the draft heads that all engines have."""

    def __init__(self) -> None:
        self.plan: SpecPlan | None = None
        self.stopped: dict[str, None] = {}
        """Runs of rollouts, in order."""
        self.heads: dict[HeadProposerName, str] = {}
        """Draft heads by proposer; empty: those that the engines start with."""

    def note(self, control: ApplyPlan | StopRun) -> None:
        """Remember what engines that start later need to know."""
        match control:
            case ApplyPlan(plan):
                self.plan = plan
            case StopRun(run):
                self.stopped[run] = None

    def swapped(self, name: str, proposer: HeadProposerName, result: HeadSwapped) -> None:
        """Remember a head: by its version, as an alias may stand for another one later, or by its folder."""
        self.heads[proposer] = name if "/" in name else result.current or "none"

    async def bring_up_to_date(self, client: EngineClient) -> None:
        """Tell an engine that was just started. A head that cannot be used any more costs drafts, not the engine."""
        for proposer, head in list(self.heads.items()):
            try:
                await client.swap_head(head, proposer)
            except ProlepsisError as error:
                log.warning("head_not_restored", proposer=proposer, head=head, error=str(error))
        if self.plan is not None:  # last: it may have changed while a head was loaded
            client.send(ApplyPlan(self.plan))
        for name in self.stopped:
            client.send(StopRun(name))
