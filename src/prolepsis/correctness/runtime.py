"""Correctness in production: a share of the finished requests is decoded again, plainly, in idle time, and compared."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from uuid import uuid4

import structlog

from prolepsis.api.share import Share
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.ended import Assignment, Keep, RequestAbout, RequestEnded
from prolepsis.core.errors import DeadlineExceeded, ProlepsisError
from prolepsis.core.events import Difference
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import EffectiveMode
from prolepsis.correctness.mismatch import Found
from prolepsis.correctness.replay import Outcome, Recording, Replayed, recording, replay
from prolepsis.engine.client import EngineClient, EngineInfo
from prolepsis.telemetry.replays import ReplayDrop, ReplayMetrics, ReplayOutcome
from prolepsis.web.feature import Feature

LOOK_EVERY_S = 0.05
"""How often a replay looks whether it has to give way; until then its priority keeps it behind all others."""
MAX_TRIES = 3
"""Times that a replay may give way before it is dropped."""
MAX_QUEUED_TOKENS = 500_000
"""Of prompts and answers that wait: what bounds the queue's memory, to some 30 MB."""
KEPT_DIFFERENCES = 50

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """As `ServerConfig` says it."""

    sample: float = 0.0
    max_queued: int = 256
    trip_after: int = 0
    """Every so many structural differences turn the kill switch on; 0: never."""


@dataclass(frozen=True, slots=True)
class _Served:
    """A request that was served and waits to be decoded again."""

    recorded: Recording
    about: RequestAbout
    mode: EffectiveMode
    counts: bool
    """It is evidence for the rollout that it is part of; of a request's prompts the first is."""
    num_tries: int = 0


class Replays(Feature):
    """Holds what waits and what was found. Belongs to one event loop; one replay runs at a time."""

    name = "correctness"

    def __init__(
        self,
        client: EngineClient,
        settings: ReplaySettings,
        metrics: ReplayMetrics,
        has_room: Callable[[], bool],
        *,
        emit: Emit,
        count: Callable[[Assignment, bool], None] | None = None,
        trip: Callable[[str], None] | None = None,
    ) -> None:
        """`has_room`: whether a replay may run now. `count` is told of the arm of each replayed request whether its
        tokens were right, `trip` why all speculation is to stop."""
        self.settings = settings
        self.outcomes: Counter[ReplayOutcome] = Counter()
        self.dropped: Counter[ReplayDrop] = Counter()
        self.found: deque[Found] = deque(maxlen=KEPT_DIFFERENCES)
        """The last differences."""
        self._client = client
        self._metrics = metrics
        self._has_room = has_room
        self._emit = emit
        self._count = count
        self._trip = trip
        self._share = Share(settings.sample)
        self._drawn: set[str] = set()
        """Requests that run and are to be replayed."""
        self._queue: deque[_Served] = deque()
        self._num_tokens = 0
        self._arrived = asyncio.Event()
        self._running = asyncio.Lock()

    @property
    def enabled(self) -> bool:
        return self.settings.sample > 0.0

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def match_rate(self) -> float | None:
        """Share of the compared requests whose tokens were the same; None before the first."""
        compared = sum(self.outcomes[outcome] for outcome in ("match", "near_tie", "structural"))
        return self.outcomes["match"] / compared if compared else None

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Draw whether the request is to be replayed; if so its tokens are kept."""
        if not self.enabled or not self._share.draw():
            return Keep.FIGURES
        self._drawn.add(request.request_id)
        return Keep.TOKENS

    def on_request_end(self, ended: RequestEnded) -> None:
        """Queue the prompts that were drawn and have finished."""
        for number, prompt in enumerate(ended.prompts):
            request = prompt.request
            if request.request_id in self._drawn:
                self._drawn.remove(request.request_id)
                if prompt.end == "finished" and prompt.has_engine_stats:
                    recorded, counts = recording(request, prompt.tokens), ended.about.is_evidence and number == 0
                    self._put(_Served(recorded, ended.about, prompt.stats.mode, counts))

    async def run(self) -> None:
        """Decode again what waits, while there is room, until cancelled."""
        if not self.enabled:
            return
        try:
            while True:
                await self._arrived.wait()
                async with self._running:
                    await self._next()
        finally:
            self._drop("closed", len(self._queue))
            self._queue.clear()

    async def by_hand(self, recorded: Recording, timeout_s: float) -> Replayed:
        """Decode one recording again as soon as there is room; raises what the engine raises, `DeadlineExceeded`."""
        try:
            async with asyncio.timeout(timeout_s), self._running:
                while True:
                    await self._room()
                    replayed = await self._attempt(recorded)
                    if replayed is not None:
                        return replayed
        except TimeoutError:
            raise DeadlineExceeded(f"the engine had no room for a whole replay within {timeout_s:g} s") from None

    def _put(self, served: _Served) -> None:
        num_tokens = served.recorded.num_tokens
        if len(self._queue) >= self.settings.max_queued or self._num_tokens + num_tokens > MAX_QUEUED_TOKENS:
            self._drop("queue_full")
            return
        self._queue.append(served)
        self._num_tokens += num_tokens
        self._show()

    async def _next(self) -> None:
        await self._room()
        served = self._queue.popleft()
        self._num_tokens -= served.recorded.num_tokens
        self._show()
        try:
            await self._again(served)
        except asyncio.CancelledError:
            self._drop("closed")
            raise
        except ProlepsisError as error:
            log.warning("replay_failed", request_id=served.recorded.request.request_id, error=error.code)
            self._ended("failed")
        except Exception:  # contained: what checks on requests must not end, whatever becomes of one
            log.exception("replay_failed", request_id=served.recorded.request.request_id)
            self._ended("failed")

    async def _again(self, served: _Served) -> None:
        replayed = await self._attempt(served.recorded)
        if replayed is not None:
            self._judge(served, replayed)
        elif served.num_tries + 1 < MAX_TRIES:
            self._metrics.interrupted.inc()
            self._put(replace(served, num_tries=served.num_tries + 1))
        else:
            self._drop("interrupted")

    async def _room(self) -> None:
        while not self._has_room():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)

    async def _attempt(self, recorded: Recording) -> Replayed | None:
        """Return what a replay shows, None where it gave way to others."""
        async with _task_of(replay(self._client, recorded, f"replay-{uuid4().hex}")) as replaying:
            while True:
                done, _ = await asyncio.wait([replaying], timeout=LOOK_EVERY_S)
                if done:
                    return replaying.result()
                if not self._has_room():
                    return None

    def _judge(self, served: _Served, replayed: Replayed) -> None:
        outcome = replayed.outcome
        self._ended(outcome)
        assignment = served.about.assignment
        if self._count is not None and served.counts and assignment is not None:
            self._count(assignment, self._is_right(outcome))
        if replayed.first is not None:
            self._differed(served, replayed.first)

    def _is_right(self, outcome: Outcome) -> bool:
        """In strict mode tokens are the same to the last; else rounding may decide between two that are nearly tied."""
        return outcome == "match" or (outcome == "near_tie" and self._client.info.exactness == "normal")

    def _differed(self, served: _Served, first: tuple[int, Difference]) -> None:
        found = _found(served, first)
        self.found.append(found)
        say = log.error if found.kind == "structural" else log.warning
        say("replay_differs", kind=found.kind, request_id=found.request_id, position=found.position)
        if found.kind == "structural":
            self._emit(_audit_event(found, self._client.info))
            self._trip_if_due(found.request_id)

    def _trip_if_due(self, request_id: str) -> None:
        number = self.outcomes["structural"]
        every = self.settings.trip_after
        if self._trip is not None and every and number % every == 0:
            self._trip(f"{number} replayed requests had other tokens, the last of them {request_id}")

    def _ended(self, outcome: ReplayOutcome) -> None:
        self.outcomes[outcome] += 1
        self._metrics.ended(outcome)

    def _drop(self, reason: ReplayDrop, number: int = 1) -> None:
        if number:
            self.dropped[reason] += number
            self._metrics.dropped(reason, number)

    def _show(self) -> None:
        self._metrics.queued.set(len(self._queue))
        (self._arrived.set if self._queue else self._arrived.clear)()


@asynccontextmanager
async def _task_of(work: Coroutine[object, object, Replayed]) -> AsyncIterator[asyncio.Task[Replayed]]:
    """Run work beside the block; what is not done by its end is cancelled."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def _found(served: _Served, first: tuple[int, Difference]) -> Found:
    """Return what is told of a request's first difference, given with its sample."""
    sample, difference = first
    about = served.about
    return Found(
        at=time.time(),
        request_id=served.recorded.request.request_id,
        tenant=about.tenant,
        route=about.route,
        rule=about.policy_rule,
        policy_version=about.policy_version,
        arm=about.assignment.arm if about.assignment else None,
        mode=served.mode,
        sample=sample,
        position=difference.position,
        kind=difference.kind,
        margin=difference.margin,
        tolerance=difference.tolerance,
    )


def _audit_event(found: Found, info: EngineInfo) -> AuditEvent:
    """Return the event of a structural mismatch; it has no token."""
    after = {name: value for name, value in asdict(found).items() if name not in ("tenant", "request_id")}
    return AuditEvent(
        actor=SERVER,
        action=f"replay.{found.kind}",
        subject=found.request_id,
        after={**after, "exactness": info.exactness, "draft_head": info.draft_head},
        tenant=found.tenant,
        versions=info.versions | ({"policy": found.policy_version} if found.policy_version else {}),
    )
