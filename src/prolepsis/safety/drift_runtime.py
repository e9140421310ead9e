"""Drift while serving: it polls the engine's counts, and reports alarms to log, metrics and the audit log."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import structlog
from prometheus_client import CollectorRegistry
from pydantic import Field

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import RequestEnded
from prolepsis.core.facts import TRAFFIC_CLASS
from prolepsis.core.stats import JudgedDraft, TrafficClassCounts
from prolepsis.safety.baselines import Baselines, BaselineStore
from prolepsis.safety.benefit import Benefits
from prolepsis.safety.drift import STATUSES, DriftAlarm, DriftStreams, Key, Status
from prolepsis.store.learned import Keeper
from prolepsis.telemetry.declare import counter, gauge
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.errors import RequestRefused
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.routes import OPERATORS, READERS, Route, Routes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStreamReply:
    """One proposer in one traffic class since its version was deployed; null: not known yet."""

    proposer: str
    traffic_class: str
    version: str
    status: Status
    acceptance: float | None
    """Acceptance of first drafted tokens since the last change."""
    recent_acceptance: float | None
    """Over the window in which cliffs are detected."""
    overestimated: float | None
    """The proposer's recent estimate for its first token less the actual acceptance."""
    total_variation: float | None
    """A lower bound of the mean distance of its next-token distribution from the target's, 0 to 1."""
    benefit: float | None
    """Share of the answers' tokens that it usually brings."""
    num_judged: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReply:
    enabled: bool
    streams: list[DriftStreamReply]


class DriftFeature(Feature):
    """Belongs to one event loop."""

    name = "drift"
    period_s = 0.2

    def __init__(
        self,
        streams: DriftStreams | None,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        version_of: Callable[[str], str],
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        on_cliff: Callable[[Key], None] | None = None,
        store: BaselineStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`streams`: None disables drift. `on_cliff` is called with proposer and traffic class of a cliff.

        `store` keeps the baselines; None: they end with the server.
        """
        self.streams = streams
        self.benefits = Benefits()
        self.routes = drift_routes(self)
        self._counts = counts
        self._version_of = version_of
        self._emit = emit
        self._on_cliff = on_cliff
        self._clock = clock
        used = store if streams is not None else None
        self._keeper = Keeper(self.name, used, restore=self._take, learned=self._learned, clock=clock)
        self._shown: dict[Key, tuple[Status, *tuple[float | None, ...]]] = {}
        self._metrics = _Metrics(registry)

    async def tick(self) -> None:
        """Process the engine's counts; read and keep the baselines when that is due."""
        self.poll()
        await self._keeper.tick()

    async def close(self) -> None:
        """Keep the baselines for the next start."""
        await self._keeper.close()

    def _take(self, learned: Baselines) -> None:
        if self.streams is not None:
            self.streams.restore(learned.streams, self._clock())
            self.benefits.restore(learned.benefits)

    def _learned(self) -> Baselines:
        return Baselines(self.streams.states() if self.streams is not None else {}, self.benefits.states())

    def on_request_end(self, ended: RequestEnded) -> None:
        """Process the first judged drafts of a request, and what its drafts brought."""
        if self.streams is None or not ended.prompts:
            return
        judged: dict[str, list[JudgedDraft]] = {}
        for prompt in ended.prompts:
            for proposer, drafts in prompt.stats.judged.items():
                if prompt.stats.is_evidence_of(proposer, self._version_of(proposer)):
                    judged.setdefault(proposer, []).extend(drafts)
        now, traffic_class = self._clock(), ended.prompts[0].request.traffic_class
        for proposer, drafts in judged.items():
            for alarm in self.streams.see((proposer, traffic_class), self._version_of(proposer), drafts, now):
                self._report(alarm)
        for alarm in self.benefits.see(ended, now):
            self._report(alarm)

    def poll(self) -> None:
        """Process the engine's counts."""
        if self.streams is None:
            return
        for alarm in self.streams.observe(self._counts(), self._version_of, self._clock()):
            self._report(alarm)
        for key, stream in self.streams.all.items():
            numbers = (stream.acceptance, stream.overestimated, stream.total_variation, self.benefits.share(key))
            if self._shown.get(key) != (stream.status, *numbers):
                self._shown[key] = (stream.status, *numbers)
                self._metrics.show(key, stream.status, numbers)
        for key, is_gone in self.benefits.gone(self._clock()).items():
            self._metrics.benefit_gone.labels(*key).set(is_gone)

    def reset(self, key: Key, by: str) -> DriftStreamReply | None:
        """Start a stream again for an operator, with its benefit; return it, None for an unknown one."""
        if self.streams is None or key not in self.streams.all:
            return None
        before = self._stream(key)
        self.streams.reset(key, self._clock())
        self.benefits.forget(key)
        self._emit(AuditEvent(actor=by, action="drift.reset", subject=" ".join(key), before=asdict(before)))
        return self._stream(key)

    @property
    def reply(self) -> DriftReply:
        streams = [self._stream(key) for key in sorted(self.streams.all)] if self.streams is not None else []
        return DriftReply(enabled=self.streams is not None, streams=streams)

    def _stream(self, key: Key) -> DriftStreamReply:
        assert self.streams is not None, "there is a stream"
        stream = self.streams.all[key]
        return DriftStreamReply(
            proposer=key[0],
            traffic_class=key[1],
            version=stream.version,
            status=stream.status,
            acceptance=stream.acceptance,
            recent_acceptance=stream.recent_acceptance,
            overestimated=stream.overestimated,
            total_variation=stream.total_variation,
            benefit=self.benefits.share(key),
            num_judged=stream.num_judged,
            seconds=round(self._clock() - stream.since, 1),
        )

    def _report(self, alarm: DriftAlarm) -> None:
        write = {"cliff": log.error, "recovered": log.info}.get(alarm.kind, log.warning)
        write("drift", **asdict(alarm))
        key = (alarm.proposer, alarm.traffic_class)
        self._metrics.alarms.labels(*key, alarm.kind).inc()
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"drift.{alarm.kind}",
                subject=" ".join(key),
                after=asdict(alarm),
                versions={"proposer": alarm.version},
            )
        )
        if alarm.kind == "cliff" and self._on_cliff is not None:
            self._on_cliff(key)


class _Metrics:
    """There are few traffic classes by construction, so they can be labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ("proposer", "traffic_class")
        self.alarms = counter(registry, "drift_alarms", "Alarms of drift and of cliffs", *by, "kind", most=200)
        self._status = gauge(registry, "drift_status", "1 for the drift status of a proposer", *by, "status", most=320)
        text = "1 while a proposer brings less than half of what it brought"
        self.benefit_gone = gauge(registry, "drift_benefit_gone", text, *by, most=80)
        self._numbers = [
            gauge(registry, f"drift_{name}", text, *by, most=80)
            for name, text in (
                ("acceptance", "Usual acceptance of first drafted tokens"),
                ("overestimated", "Estimated less actual acceptance of first drafted tokens, lately"),
                ("total_variation", "Least distance of the proposer's next-token distribution from the target's"),
                ("benefit", "Share of the answers' tokens that the proposer usually brings"),
            )
        ]

    def show(self, key: Key, status: Status, numbers: Sequence[float | None]) -> None:
        """Show one stream; figures that are None are not known yet."""
        for other in STATUSES:
            self._status.labels(*key, other).set(other == status)
        for shown, number in zip(self._numbers, numbers, strict=True):
            if number is not None:
                shown.labels(*key).set(number)


class DriftResetBody(Body):
    """The stream to start again."""

    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]


def drift_routes(feature: DriftFeature) -> Sequence[Route]:
    """Return the routes that show and reset drift."""
    routes = Routes()

    @routes.get("/admin/drift", roles=READERS, summary="Drift by proposer and traffic class")
    async def drift() -> DriftReply:
        return feature.reply

    @routes.post("/admin/drift/reset", roles=OPERATORS, summary="Start one stream again", errors=(404, 409))
    async def reset_drift(
        body: Annotated[DriftResetBody, read_body(DriftResetBody)], caller: SignedIn
    ) -> DriftStreamReply:
        stream = feature.reset((body.proposer, body.traffic_class), caller.actor)
        if stream is None:
            message = f"{body.proposer!r} has no stream in {body.traffic_class!r}; GET /admin/drift lists all streams"
            raise RequestRefused(message, code="unknown_stream", param="traffic_class", status=404)
        return stream

    return routes.all
