"""The engines that may serve a request: which are alive, which can continue a stream, how lost ones are replaced."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from prolepsis.core.codec import ProtocolError
from prolepsis.core.continuation import Continuation
from prolepsis.core.engine_client import EngineClient, EngineHealth, EngineInfo, EngineMember
from prolepsis.core.errors import DeadlineExceeded, EngineError, NotContinued
from prolepsis.remote.continuation_metrics import ContinuationMetrics
from prolepsis.remote.member import Directory, FailoverSettings, Member, StartClient
from prolepsis.remote.prefixes import PrefixRouter, ReplicaRouter
from prolepsis.remote.stream import KeptStream
from prolepsis.remote.views import summed_health

log = structlog.get_logger(__name__)

_CLOSE_S = 15.0
"""Longest wait for a lost engine to close; a process takes 10 s until it is killed."""
_LONGEST_BACKOFF_S = 8.0
_MOST_DOUBLINGS = 20


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
        self.info = info
        """Facts about an engine that was there, used while there is none."""
        self.is_closing = False
        self._tokenizer = info.tokenizer
        """What the front end's token ids mean, whichever engines come later."""
        self._settings = settings
        self._metrics = metrics
        self._prepare = prepare
        self._directory = directory
        self._router = router or PrefixRouter()
        self._clock = clock
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost: list[EngineClient] = []
        """Lost engines that are not closed."""

    def follow(self) -> None:
        """Look for engines in the directory from now on, if there is one."""
        if self._directory is not None:
            self._spawn(self._follow(self._directory))

    def health(self) -> EngineHealth:
        """Return the health of all: alive while one is or may come, ready while one is; loads add up."""
        found = [member.client.health() for member in self.all if member.client is not None]
        may_come = self._directory is not None or any(member.start is not None for member in self.all)
        absences = [member.absence for member in self.all if member.client is None]
        if not found and not absences:
            absences = ["no engine has been found so far"]
        health = summed_health(
            found,
            alive=not self.is_closing and (may_come or any(health.alive for health in found)),
            absences=absences,
        )
        return replace(health, members=tuple(_described(member) for member in self.all if member.listed_as))

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
                    if (found := self._choose(stream)) is not None:
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
            found = ", ".join({member.engine.info.tokenizer for member in present})
            raise EngineError(f"the front end has the tokenizer {self._tokenizer}, the engines have {found}")
        fitting = [member for member in known if not differences(stream, member.engine.info)]
        if fitting or (known and self._settings.outside_group == "continue"):
            return self._preferred(stream, fitting or known)
        if self._comes_back(present):
            return None
        if not present:
            raise NotContinued("no engine is left", reason="no_engine")
        reasons = "; ".join(differences(stream, known[0].engine.info))
        raise NotContinued(f"the engines left are of another exact group: {reasons}", reason="other_group")

    def _comes_back(self, present: Sequence[Member]) -> bool:
        """Return whether an engine worth waiting for may come: engines of a directory may be of any group."""
        if self._directory is not None:
            return not present
        return any(member.start is not None for member in self.all if member not in present)

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
                self._take(await directory.engines())
            except Exception:  # contained: the next look may find them
                log.exception("engines_not_listed")
            await self._sleep(self._settings.list_s)

    def _take(self, listed: Mapping[str, StartClient]) -> None:
        """Connect to engines that are new in the directory; lost ones come back only while they are in it."""
        known = {member.listed_as: member for member in self.all if member.listed_as}
        for name, member in known.items():
            member.start = listed.get(name)
        for name in listed.keys() - known.keys():
            member = Member(None, listed[name], listed_as=name)
            self.all.append(member)
            self._spawn(self._fill(member))

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
            self._not_started(member, error)
            return
        if not member.listed_as:
            self._metrics.restarted("started")
        member.serves_since = self._clock()
        log.info("engine_started", engine=member.listed_as, seconds=round(member.serves_since - began, 3))
        member.client, member.detail = client, ""

    def _not_started(self, member: Member, error: Exception) -> None:
        if not member.listed_as:
            self._metrics.restarted("failed")
        what = f"{member.listed_as} cannot be reached" if member.listed_as else "the engine did not start"
        before, member.detail = member.detail, f"{what}: {str(error) or repr(error)}"
        if member.detail != before:
            is_fault = not isinstance(error, OSError | EOFError | ProtocolError)
            log.error("engine_not_started", engine=member.listed_as, error=repr(error), exc_info=is_fault)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def differences(stream: KeptStream, info: EngineInfo) -> tuple[str, ...]:
    """Return why an engine is not known to continue with the stream's very tokens; empty: it does."""
    if stream.info is None:
        return ()
    found = Continuation(emitted=(), group=stream.info.exact_group).differences(info.exact_group)
    if info.max_model_len != stream.info.max_model_len:
        found += (f"max_model_len {stream.info.max_model_len} recorded, {info.max_model_len} here",)
    return found


def _described(member: Member) -> EngineMember:
    """Return a listed engine as the front end shows it."""
    health = member.client.health() if member.client is not None else None
    return EngineMember(
        name=member.listed_as,
        exact_group=member.client.info.exact_group.digest if member.client is not None else "",
        ready=health is not None and health.ready,
        detail=health.detail if health is not None else member.detail,
        num_running=health.num_running if health is not None else 0,
        num_waiting=health.num_waiting if health is not None else 0,
        kv_usage=health.kv_usage if health is not None else 0.0,
    )
