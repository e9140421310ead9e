"""Correctness in production: a share of finished requests is replayed without speculation when idle, and compared."""

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal, get_args
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.audit.requests import Decode
from prolepsis.control.controls.kill_switch_runtime import KillSwitch
from prolepsis.control.correctness import evidence
from prolepsis.control.correctness.evidence import MOST_COMPARED, AnswerDiff, SimilarityReply
from prolepsis.control.correctness.queue import DROPS, ReplayDrop, ReplayQueue, ServedRequest
from prolepsis.control.correctness.replay import replay
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import Assignment, Keep, RequestAbout, RequestEnded
from prolepsis.core.engine_client import EngineClient, EngineInfo
from prolepsis.core.errors import DeadlineExceeded, ProlepsisError
from prolepsis.core.reasons import EffectiveReason
from prolepsis.core.recording import Outcome, Recording, Replayed, SampleDifference, recording
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import Mode
from prolepsis.core.telemetry.declare import counter

POLL_PERIOD_S = 0.05  # how often a replay checks for other requests; meanwhile its priority keeps it behind them
MAX_TRIES = 3  # times that a replay may make way before it is dropped
MAX_MISMATCHES = 50

ReplayOutcome = Literal["match", "near_tie", "structural", "failed"]
OUTCOMES: tuple[ReplayOutcome, ...] = get_args(ReplayOutcome)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMismatch(SampleDifference):
    """A request whose replay had other tokens, and its first difference; margin and tolerance in logits."""

    at: float  # Unix time in seconds
    request_id: str
    route: str
    rule: str | None
    policy_version: str | None
    arm: str | None
    mode: Mode
    reason: EffectiveReason
    plan_version: int
    similarity: float  # of the two answers, 0 to 1


Report = Callable[[RequestEnded, str, Replayed, float], None]
"""Receives an HTTP request, the id of its part that was replayed, the replay, and when it began."""
Found = Callable[[RequestEnded, int, ReplayMismatch, AnswerDiff | None], None]
"""Receives an HTTP request, the number of its prompt whose replay differs, and what is known of that."""
REPLAYS = "replays"  # the actor that engages the kill switch for replays


class Share:
    """Draws about every (1 / share)-th request; the gaps vary by half, so the sample is even but has no pattern."""

    def __init__(self, share: float, *, randomness: random.Random | None = None) -> None:
        """`share` in [0, 1]."""
        self._share = share
        self._random = randomness or random.Random()
        self._remaining = self._gap()

    def draw(self) -> bool:
        """Return whether the next request belongs to the share."""
        if self._share in (0.0, 1.0):
            return self._share == 1.0
        self._remaining -= 1.0
        if self._remaining > 0.0:
            return False
        self._remaining += self._gap()
        return True

    def _gap(self) -> float:
        return self._random.uniform(0.5, 1.5) / self._share if self._share else 0.0


class ReplayFeature(Feature):
    """Holds the waiting requests and the mismatches. Belongs to one event loop; one replay runs at a time."""

    name = "correctness"

    def __init__(
        self,
        client: EngineClient,
        config: ServerConfig,
        registry: CollectorRegistry,
        has_capacity: Callable[[], bool],
        *,
        emit: Emit,
        count: Callable[[Assignment, bool], None] | None = None,
        trip: Callable[[str], None] | None = None,
        report: Report | None = None,
        found: Found,
        decode: Decode,
    ) -> None:
        """`has_capacity`: whether a replay may run now. `count` receives the assignment of each replayed request and
        whether its tokens were right, `trip` the reason to stop all speculation, `report` replays with wrong tokens,
        `found` every one that differs."""
        self.config = config
        self.queue = ReplayQueue(config.limits.replay_queue, registry)
        self.health_parts = {"correctness": self._shown}
        self.outcomes: Counter[ReplayOutcome] = Counter()
        """Replays since the start; match rate = match / (match + near_tie + structural)."""
        self.mismatches: deque[ReplayMismatch] = deque(maxlen=MAX_MISMATCHES)  # the last ones
        self.client = client
        self._similarities: deque[float] = deque(maxlen=MOST_COMPARED)
        text = "Similarity to their answers (0 to 1) of replays that could be compared, summed"
        self._similarity = counter(registry, "replay_similarity", text)
        text = "Requests decoded again without speculation, by outcome"
        self._replays = counter(registry, "replays", text, "outcome")
        for outcome in OUTCOMES:
            self._replays.labels(outcome)  # an alert on a rise needs the 0 before it
        text = "Replays that made way for requests and started again"
        self._interrupted = counter(registry, "replay_interrupted", text)
        self._has_capacity = has_capacity
        self._emit = emit
        self._count = count
        self._trip = trip
        self._report = report
        self._found = found
        self._decode = decode
        self._share = Share(config.replay_sample)
        self._drawn: set[str] = set()  # requests that run and are to be replayed
        self._running = asyncio.Lock()

    def _shown(self) -> "CorrectnessReply":
        return CorrectnessReply(
            enabled=self.enabled,
            share=self.config.replay_sample,
            exactness=self.client.info.exactness,
            match_rate=self.match_rate,
            similarity=evidence.similarity_reply(self._similarities),
            outcomes={outcome: self.outcomes[outcome] for outcome in OUTCOMES},
            num_queued=len(self.queue),
            dropped={reason: self.queue.dropped[reason] for reason in DROPS},
            trip_after=self.config.limits.replay_trip_after,
            differences=list(self.mismatches),
        )

    @property
    def enabled(self) -> bool:
        return self.config.replay_sample > 0.0

    @property
    def match_rate(self) -> float | None:
        """Share of the compared requests with identical tokens; None before the first."""
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
                if prompt.end == "finished" and prompt.answer == "complete":
                    recorded = recording(request, prompt.tokens)
                    self.queue.put(ServedRequest(recorded, ended.without_tokens, number))

    async def run(self) -> None:
        """Replay waiting requests while there is capacity, until cancelled."""
        if not self.enabled:
            return
        try:
            while True:
                await self.queue.wait()
                async with self._running:
                    await self._next()
        finally:
            self.queue.close()

    async def replay_now(self, recorded: Recording, timeout_s: float) -> Replayed:
        """Replay one recording; raises the engine's errors, `DeadlineExceeded`, `RequestRefused` without capacity."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._has_capacity():
                    async with self._running:
                        replayed = await self._attempt(recorded)
                    if replayed is not None:
                        return replayed
        except TimeoutError:
            raise DeadlineExceeded(f"the replay did not end within {timeout_s:g} s") from None
        message = "Requests of clients take the engine's capacity, and replays make way for them; try again later."
        raise RequestRefused(message, code="overloaded", status=503)

    async def _next(self) -> None:
        while not self._has_capacity():  # noqa: ASYNC110
            await asyncio.sleep(POLL_PERIOD_S)
        served = self.queue.pop()
        try:
            began = time.monotonic()
            replayed = await self._attempt(served.recorded)
            if replayed is not None:
                mismatch = self._judge(served, replayed)
                if mismatch is not None:
                    self._found(served.ended, served.number, mismatch, await self._diff(served, replayed, mismatch))
                if self._report is not None and not self._is_right(replayed.outcome):
                    self._report(served.ended, served.request_id, replayed, began)
            elif served.num_tries + 1 < MAX_TRIES:
                self._interrupted.inc()
                self.queue.put(replace(served, num_tries=served.num_tries + 1))
            else:
                self.queue.drop("interrupted")
        except asyncio.CancelledError:
            self.queue.drop("closed")
            raise
        except ProlepsisError as error:
            log.warning("replay_failed", request_id=served.request_id, error=error.code)
            self._ended("failed")
        except Exception:  # contained: one failed replay must not end the others
            log.exception("replay_failed", request_id=served.request_id)
            self._ended("failed")

    async def _attempt(self, recorded: Recording) -> Replayed | None:
        """Return the result of a replay, None if it made way for other requests."""
        async with _task_of(replay(self.client, recorded, f"replay-{uuid4().hex}")) as replaying:
            while True:
                done, _ = await asyncio.wait([replaying], timeout=POLL_PERIOD_S)
                if done:
                    return replaying.result()
                if not self._has_capacity():
                    return None

    async def _diff(self, served: ServedRequest, replayed: Replayed, mismatch: ReplayMismatch) -> AnswerDiff | None:
        pair = served.recorded.tokens[mismatch.sample], replayed.tokens[mismatch.sample]
        content = served.about.audit_content or self.config.audit_content
        try:
            return await asyncio.to_thread(evidence.answer_diff, *pair, mismatch.position, self._decode, content)
        except Exception:  # contained: tokens that have no text must not hide the mismatch
            log.exception("diff_failed", request_id=served.request_id)
            return None

    def _judge(self, served: ServedRequest, replayed: Replayed) -> ReplayMismatch | None:
        """Count a replay; return its mismatch."""
        outcome, similar = replayed.outcome, evidence.similarity(served.recorded, replayed)
        self._ended(outcome)
        self._similarities.append(similar)
        self._similarity.inc(similar)
        assignment = served.about.assignment
        if self._count is not None and served.counts and assignment is not None:
            self._count(assignment, self._is_right(outcome))
        if not replayed.shown:
            return None
        first = min(replayed.shown, key=lambda difference: (difference.kind != "structural", difference.sample))
        about = served.about
        mismatch = ReplayMismatch(
            at=time.time(),
            request_id=served.request_id,
            route=about.route,
            rule=about.policy_rule,
            policy_version=about.policy_version,
            arm=about.assignment.arm if about.assignment else None,
            **asdict(served.mode),
            **asdict(first),
            similarity=similar,
        )
        self.mismatches.append(mismatch)
        write = log.error if mismatch.kind == "structural" else log.warning
        write("replay_mismatch", kind=mismatch.kind, request_id=mismatch.request_id, position=mismatch.position)
        if mismatch.kind == "structural":
            self._emit(_audit_event(mismatch, served.about.tenant, self.client.info))
            number, every = self.outcomes["structural"], self.config.limits.replay_trip_after
            if self._trip is not None and every and number % every == 0:
                self._trip(f"{number} replayed requests had other tokens, the last was {mismatch.request_id}")
        return mismatch

    def _is_right(self, outcome: Outcome) -> bool:
        """In strict mode all tokens are identical; in normal mode rounding may decide between nearly tied tokens."""
        return outcome == "match" or (outcome == "near_tie" and self.client.info.exactness == "normal")

    def _ended(self, outcome: ReplayOutcome) -> None:
        self.outcomes[outcome] += 1
        self._replays.labels(outcome).inc()


@asynccontextmanager
async def _task_of(work: Coroutine[object, object, Replayed]) -> AsyncIterator[asyncio.Task[Replayed]]:
    """Run work concurrently with the block; cancel it if it is not done at the end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def _audit_event(mismatch: ReplayMismatch, tenant: str, info: EngineInfo) -> AuditEvent:
    """Return the event of a structural mismatch; it contains no token."""
    return AuditEvent(
        actor=SERVER,
        action=f"replay.{mismatch.kind}",
        subject=mismatch.request_id,
        names=(mismatch.request_id,),
        after={**asdict(mismatch), "exactness": info.exactness, "draft_head": info.draft_head},
        tenant=tenant,
        versions=info.versions | ({"policy": mismatch.policy_version} if mismatch.policy_version else {}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectnessReply:
    enabled: bool
    share: float  # share of finished requests that are replayed, 0 to 1
    exactness: Literal["strict", "normal"]
    match_rate: float | None  # share of matches among the replays that could be compared; null before the first
    similarity: SimilarityReply
    outcomes: dict[ReplayOutcome, int]  # replays since the start; failed ones could not be compared
    num_queued: int
    dropped: dict[ReplayDrop, int]  # requests drawn for a replay that were not replayed, by reason
    trip_after: int  # structural mismatches after which the kill switch is engaged, each time; 0: never
    differences: list[ReplayMismatch]  # the last ones, oldest first


def feature(
    context: Context,
    kill_switch: KillSwitch,
    has_room: Callable[[], bool],
    *,
    count: Callable[[Assignment, bool], None],
    report: Report,
    found: Found,
    decode: Decode,
) -> ReplayFeature:
    """Return the replays; their outcomes may engage the kill switch. The others as `ReplayFeature`."""
    return ReplayFeature(
        context.client,
        context.config,
        context.registry,
        has_room,
        emit=context.emit,
        count=count,
        trip=partial(kill_switch.trip, REPLAYS),
        report=report,
        found=found,
        decode=decode,
    )
