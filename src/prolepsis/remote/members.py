"""The engines that may serve a request: which are alive, which can continue a stream, how lost ones are replaced."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.core.codec import ProtocolError
from prolepsis.core.continuation import Continuation, Continued, NotContinuedReason, OutsideGroup
from prolepsis.core.engine_client import EngineClient, EngineHealth, EngineInfo, EngineMember
from prolepsis.core.errors import DeadlineExceeded, EngineError, NotContinued
from prolepsis.core.telemetry.declare import counter, histogram
from prolepsis.remote.prefixes import PrefixRouter, ReplicaRouter
from prolepsis.remote.stream import KeptStream
from prolepsis.remote.views import summed_health

log = structlog.get_logger(__name__)

_CLOSE_S = 15.0  # longest wait for a lost engine to close; a process takes 10 s until it is killed
_LONGEST_BACKOFF_S = 8.0
_MOST_DOUBLINGS = 20

StartClient = Callable[[], Awaitable[EngineClient]]
"""Returns a client of an engine: built in this process, started in another, or connected to. Raises the reason why
there is none."""


class Directory(Protocol):
    """Knows which engines there are, where other programs start and end them."""

    async def engines(self) -> Mapping[str, StartClient]:
        """Return what connects to each engine, by a name that ends with the engine."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """Defaults suit engines of one machine."""

    outside_group: OutsideGroup = "refuse"
    max_losses: int = 3  # engines that one request may lose and continue: the request may be what ends them
    max_failed_steps: int = 1
    """How many of these losses may be failed steps: the engine lives on, and gives up after several in a row."""
    wait_s: float = 60.0  # longest wait of a request for an engine
    check_s: float = 0.25
    """Between two checks of the engines' health; an engine that is not alive at two in a row is lost."""
    list_s: float = 0.5  # between two looks at the directory
    max_restarts: int = 5  # starts in a row of one engine, each ended within `steady_s`; after them it stays away
    steady_s: float = 60.0
    backoff_s: float = 0.5  # before the second start in a row; it doubles, up to 8 s


class Member:
    """One engine's place. It is empty while its engine is lost and not started again."""

    def __init__(self, client: EngineClient | None, start: StartClient | None = None, *, listed_as: str = "") -> None:
        """`start` None: a lost engine stays away. `listed_as`: its name in the directory that it is from."""
        self.client = client
        self.start = start
        self.listed_as = listed_as
        self.streams: set[KeptStream] = set()
        self.is_suspect = False  # its engine was not alive at the last check
        self.detail = ""  # reason why the place is empty
        self.num_starts = 0  # starts in a row
        self.serves_since = -float("inf")  # since when it had its engine

    @property
    def engine(self) -> EngineClient:
        assert self.client is not None, "the place is not empty"
        return self.client

    @property
    def takes_requests(self) -> bool:
        if self.client is None:
            return False
        health = self.client.health()
        return health.alive and not health.is_leaving

    @property
    def load(self) -> int:
        return len(self.streams) + self.engine.health().num_elsewhere

    @property
    def absence(self) -> str:
        if self.listed_as:
            return self.detail
        return f"{'starting the engine again' if self.start else 'the engine stays away'}: {self.detail}"

    @property
    def listing(self) -> EngineMember:
        absent = EngineHealth(alive=False, ready=False, detail=self.detail)
        health = self.client.health() if self.client is not None else absent
        return EngineMember(
            name=self.listed_as,
            exact_group=self.client.info.exact_group.digest if self.client is not None else "",
            ready=health.ready,
            detail=health.detail,
            num_running=health.num_running,
            num_waiting=health.num_waiting,
            kv_usage=health.kv_usage,
        )


RestartResult = Literal["started", "failed"]


class ContinuationMetrics:
    """Counters of a front end over all of its engines: losses, continuations and restarts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Requests that lost their engine and went on in another, by why it was lost: exact or not_exact"
        self._continued = counter(registry, "continuations", text, "reason", "result")
        text = "Wait for the next token of a request that lost its engine, from its last token or its arrival"
        self._pauses = histogram(registry, "continuation_pause_seconds", text)
        text = "Requests that lost their engine and ended with it: no_engine, other_group, too_often, replay, refused"
        self._refused = counter(registry, "continuations_refused", text, "reason")
        text = "Engines that were started again after they ended, and starts that failed: started, failed"
        self._restarts = counter(registry, "engine_restarts", text, "result")
        for result in get_args(RestartResult):
            self._restarts.labels(result)  # an alert on a rise needs the 0 before it

    def continued(self, continued: Continued, *, exact: bool) -> None:
        """Count the first token of a request after a loss."""
        self._continued.labels(continued.loss, "exact" if exact else "not_exact").inc()
        self._pauses.observe(continued.pause_s)

    def refused(self, reason: NotContinuedReason) -> None:
        self._refused.labels(reason).inc()

    def restarted(self, result: RestartResult) -> None:
        self._restarts.labels(result).inc()


class Members:
    """Chooses engines for streams and starts lost ones again; belongs to one event loop."""

    def __init__(
        self,
        members: Sequence[Member],
        info: EngineInfo,
        settings: FailoverSettings,
        metrics: ContinuationMetrics,
        prepare: Callable[[EngineClient], Awaitable[None]],
        *,
        directory: Directory | None = None,
        router: ReplicaRouter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`info`: facts about the first engine. `prepare` brings an engine that has just started up to date.

        `directory`: where further engines are found. `router`: default: by prefixes and load.
        """
        self.all = list(members)
        self.info = info  # facts about an engine that was there, used while there is none
        self.is_closing = False
        self._tokenizer = info.tokenizer  # what the front end's token ids mean, whichever engines come later
        self._settings = settings
        self._metrics = metrics
        self._prepare = prepare
        self._directory = directory
        self._router = router or PrefixRouter()
        self._clock = clock
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost: list[EngineClient] = []  # lost engines that are not closed

    def follow(self) -> None:
        """Look for engines in the directory from now on, if there is one."""
        if self._directory is not None:
            self._spawn(self._follow(self._directory))

    def health(self) -> EngineHealth:
        """Return the health of all: alive while one is or may come, ready while one is; loads add up."""
        parts = [member.client.health() for member in self.all if member.client is not None]
        may_come = self._directory is not None or any(member.start is not None for member in self.all)
        absences = [member.absence for member in self.all if member.client is None]
        if not self.all:
            absences = ["no engine has been found so far"]
        alive = not self.is_closing and (may_come or any(health.alive for health in parts))
        health = summed_health(parts, alive=alive, absences=absences)
        return replace(health, members=tuple(member.listing for member in self.all if member.listed_as))

    async def place(self, stream: KeptStream) -> Member | None:
        """Return the member that serves the stream next, another than its last if there is one.

        Waits while an engine may come. None: the stream ended meanwhile. Raises `NotContinued`, `DeadlineExceeded`
        where the stream has less time than an engine may take to come, and `EngineError` where all engines have
        another tokenizer.
        """
        wait_s, left_s = self._settings.wait_s, stream.left_s
        try:
            async with asyncio.timeout(wait_s if left_s is None else min(wait_s, left_s)):
                while not (stream.is_aborted or self.is_closing):
                    if (member := self._choose(stream)) is not None:
                        return member
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            limit_s = stream.source.deadline_s
            if limit_s is not None and left_s is not None and left_s < wait_s:
                raise DeadlineExceeded.unfinished(limit_s, ", as no engine was available") from None
            raise NotContinued(f"no engine was available within {wait_s:g} s", reason="no_engine") from None
        return None

    def wake(self) -> None:
        """Let the streams that wait look again: an engine came, a stream ended."""
        self._changed.set()

    def lose(self, member: Member, client: EngineClient, detail: str) -> None:
        """A member's engine is lost; another is started in its place. A loss that is known already is ignored."""
        if member.client is not client or self.is_closing:
            return
        self.info, member.client, member.is_suspect, member.detail = client.info, None, False, detail
        self._lost.append(client)
        log.error("engine_lost", engine=member.listed_as, detail=detail, restarts=member.start is not None)
        self._spawn(self._replace(member, client))
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
        await asyncio.gather(*(client.close() for client in self._lost), return_exceptions=True)
        await asyncio.gather(*(member.client.close() for member in self.all if member.client is not None))
        if self._directory is not None:
            await self._directory.close()

    def _choose(self, stream: KeptStream) -> Member | None:
        present = [member for member in self.all if member.takes_requests]
        known = [member for member in present if member.engine.info.tokenizer == self._tokenizer]
        if present and not known:
            tokenizers = ", ".join({member.engine.info.tokenizer for member in present})
            raise EngineError(f"the front end has the tokenizer {self._tokenizer}, the engines have {tokenizers}")
        fitting = [member for member in known if not differences(stream, member.engine.info)]
        if fitting or (known and self._settings.outside_group == "continue"):
            return self._preferred(stream, fitting or known)
        if self._directory is not None:  # whose engines may be of any group
            may_come = not present
        else:
            may_come = any(member.start is not None for member in self.all if member not in present)
        if may_come:
            return None
        if not present:
            raise NotContinued("no engine is left", reason="no_engine")
        reasons = "; ".join(differences(stream, known[0].engine.info))
        raise NotContinued(f"the engines left are of another exact group: {reasons}", reason="other_group")

    def _preferred(self, stream: KeptStream, fitting: Sequence[Member]) -> Member:
        others = [member for member in fitting if member is not stream.member] or fitting
        ready = [member for member in others if member.engine.health().ready] or others
        if len(self.all) == 1:
            return ready[0]
        names = {member.listed_as or str(i): member for i, member in enumerate(self.all) if member in ready}
        name = self._router.ranked(stream.source, {name: member.load for name, member in names.items()})[0]
        self._router.sent(stream.source, name)
        return names[name]

    async def _follow(self, directory: Directory) -> None:
        while True:
            try:
                listed = await directory.engines()
                known = {member.listed_as: member for member in self.all if member.listed_as}
                for name, member in known.items():  # a lost engine comes back only while it is listed
                    member.start = listed.get(name)
                for name in listed.keys() - known.keys():
                    member = Member(None, listed[name], listed_as=name)
                    self.all.append(member)
                    self._spawn(self._fill(member))
            except Exception:  # contained: the next look may find them
                log.exception("engines_not_listed")
            await self._sleep(self._settings.list_s)

    async def _replace(self, member: Member, lost: EngineClient) -> None:
        with suppress(Exception):  # contained: it is lost, and an error at its end changes nothing
            await asyncio.wait_for(lost.close(), _CLOSE_S)
        self._lost.remove(lost)
        del lost  # its memory is free before another engine asks for some
        if self._clock() - member.serves_since > self._settings.steady_s:
            member.num_starts = 0
        await self._fill(member)

    async def _fill(self, member: Member) -> None:
        """Start an engine in an empty place, and try again where that fails."""
        while member.client is None and member.start is not None:
            if member.num_starts >= self._settings.max_restarts:
                log.error("engine_given_up", engine=member.listed_as, starts=member.num_starts)
                member.start = None
                break
            if member.num_starts:
                doubled = self._settings.backoff_s * 2 ** min(member.num_starts - 1, _MOST_DOUBLINGS)
                await self._sleep(min(doubled, _LONGEST_BACKOFF_S))
            if (start := member.start) is not None:  # it may have left the directory meanwhile
                member.num_starts += 1
                await self._start(member, start)
        if member.client is None and member.listed_as:
            self.all.remove(member)
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
        except Exception as error:  # contained: it is tried again
            if not member.listed_as:
                self._metrics.restarted("failed")
            what = f"{member.listed_as} cannot be reached" if member.listed_as else "the engine did not start"
            before, member.detail = member.detail, f"{what}: {str(error) or repr(error)}"
            if member.detail != before:
                is_fault = not isinstance(error, OSError | EOFError | ProtocolError)
                log.error("engine_not_started", engine=member.listed_as, error=repr(error), exc_info=is_fault)
            return
        if not member.listed_as:
            self._metrics.restarted("started")
        member.serves_since = self._clock()
        log.info("engine_started", engine=member.listed_as, seconds=round(member.serves_since - began, 3))
        member.client, member.detail = client, ""

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def differences(stream: KeptStream, info: EngineInfo) -> tuple[str, ...]:
    """Return why an engine is not known to continue with the stream's very tokens; empty: it does."""
    if stream.info is None:
        return ()
    reasons = Continuation(emitted=(), group=stream.info.exact_group).differences(info.exact_group)
    if info.max_model_len != stream.info.max_model_len:
        reasons += (f"max_model_len {stream.info.max_model_len} recorded, {info.max_model_len} here",)
    return reasons
