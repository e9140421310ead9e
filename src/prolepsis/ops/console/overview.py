"""The first page: is it healthy, does it pay, what needs a person."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast, get_args

from prolepsis.control.audit.changes import ChangesReply
from prolepsis.control.controls.kill_switch import KillStatus
from prolepsis.control.correctness.runtime import CorrectnessReply
from prolepsis.control.cost.comparison import MIN_REQUESTS
from prolepsis.control.drafts.heads import HeadsReply
from prolepsis.control.health.breaker_runtime import BreakersReply
from prolepsis.control.health.commands import HEALTH, WHY
from prolepsis.control.health.drift_runtime import DriftReply
from prolepsis.control.policy.routes import PolicyReply
from prolepsis.control.rollout.routes import RolloutsReply
from prolepsis.control.store.store import Store
from prolepsis.control.traffic.feature import TrafficReply
from prolepsis.control.traffic.service import ServiceReply
from prolepsis.control.traffic.timeline import TimelineSpan
from prolepsis.control.verdict.commands import VERDICTS
from prolepsis.control.verdict.feature import VerdictsReply
from prolepsis.control.web.admin_routes import Section
from prolepsis.control.web.drawing import Chart, Line
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit
from prolepsis.core.config import UPSTREAM
from prolepsis.core.engine_client import Demand, EngineClient, EngineHealth, EngineInfo
from prolepsis.core.traffic_sums import TrafficSums
from prolepsis.ops.console.alerts import AlertsReply
from prolepsis.ops.console.changes import marks, recent_changes
from prolepsis.ops.console.pages import HOME
from prolepsis.ops.console.render import age
from prolepsis.ops.console.runbook import Runbook

Urgency = Literal["bad", "warn", "info"]
_URGENCIES: tuple[Urgency, ...] = get_args(Urgency)
_SEVERITIES: Mapping[str, Urgency] = {"page": "bad", "ticket": "warn"}
_WHERE = (
    "instance",
    "region",
    "model",
    "tier",
    "proposer",
    "traffic_class",
    "rule",
    "source",
    "kind",
    "reason",
    "place",
)
"""Labels that say where an alert fires."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Something that a person should look at, with the page that shows more."""

    urgency: Urgency
    text: str
    path: str
    alert: str = ""
    """The alert that fires for it where a monitoring system watches; its runbook says what to do."""


class Load(Protocol):
    """Says what runs and what waits, in front of the engine too."""

    @property
    def demand(self) -> Demand: ...

    def health(self) -> EngineHealth: ...


def overview_pages(
    client: EngineClient, load: Load, store: Store, runbooks: Mapping[str, Runbook], *, failing: Callable[[], str]
) -> FeaturePages:
    """`failing`: why the server is not ready by what requests get, empty if it is; `runbooks`: by alert."""

    async def overview(visit: Visit) -> Page:
        traffic, changes = await visit.read(TrafficReply, "/admin/traffic"), await recent_changes(visit)
        judged = cast("HealthParts | None", (await visit.section(object, HEALTH)).value)
        verdicts = await visit.section(VerdictsReply, VERDICTS.path)
        own = [
            *_of_engine(client.health(), client.info),
            *_of_service(failing(), traffic.service),
            *_store_attention(store),
        ]
        values = {
            "health": load.health(),
            "queue_age_s": load.demand.queue_age_s,
            "recent": recent(traffic.spans),
            "service": traffic.service,
            "verdicts": verdicts,
            "clients": traffic.clients,
            "bands": traffic.bands,
            "least": MIN_REQUESTS,
            "charts": charts(traffic.spans, changes),
            "changes": changes,
            "attention": await _attention(visit, own, judged, verdicts.value, runbooks),
            "alerts": await visit.section(AlertsReply, "/admin/alerts"),
            "runbooks": runbooks,
            "correctness": judged.correctness if judged else None,
            "policy": await visit.section(PolicyReply, "/admin/policy"),
        }
        return Page("overview.html", "Overview", values)

    return FeaturePages((PageRoute(HOME, "Overview", overview, in_navigation=True),))


def recent(spans: Sequence[TimelineSpan], num: int = 20) -> TrafficSums:
    """Return the sums of the last spans, five minutes of them."""
    total = TrafficSums()
    for span in spans[-num:]:
        total.add(span)
    return total


def charts(spans: Sequence[TimelineSpan], changes: Section[ChangesReply], width_s: float = 15.0) -> list[Chart]:
    """Return what the last hour looked like, without the span that is not over."""
    over = spans[:-1]
    at = [span.at for span in over]

    def percent(value: float | None) -> float | None:
        return None if value is None else 100.0 * value

    rate = Line("tokens", [span.num_output_tokens / width_s for span in over])
    acceptance = Line("accepted", [percent(span.acceptance_rate) for span in over])
    saved = Line("saved", [percent(span.saved) for span in over])
    load = [Line("running", [span.num_running for span in over]), Line("waiting", [span.num_waiting for span in over])]
    return [
        Chart(title="Output", unit="tokens/s", at=at, lines=[rate], top=1.0),
        Chart(
            title="Acceptance",
            unit="% of drafted tokens",
            at=at,
            lines=[acceptance],
            top=100.0,
            marks=marks(changes, at),
        ),
        Chart(title="Device time saved", unit="% against predicted plain decoding", at=at, lines=[saved], top=50.0),
        Chart(title="Requests in the engine", unit="requests", at=at, lines=load, top=4.0),
    ]


class HealthParts(Protocol):
    @property
    def breakers(self) -> BreakersReply: ...
    @property
    def drift(self) -> DriftReply: ...
    @property
    def correctness(self) -> CorrectnessReply: ...


async def _attention(
    visit: Visit,
    own: Sequence[Attention],
    health: HealthParts | None,
    verdicts: VerdictsReply | None,
    runbooks: Mapping[str, Runbook],
) -> list[Attention]:
    """Return what asks for a person, the most urgent first; parts that the caller may not see are left out.

    `own`: what no route of its own says.
    """
    kill = await visit.section(KillStatus, "/admin/kill")
    rollouts = await visit.section(RolloutsReply, "/admin/rollouts")
    policy = await visit.section(PolicyReply, "/admin/policy")
    heads = (await visit.section(HeadsReply, "/admin/heads")).value
    alerts = await visit.section(AlertsReply, "/admin/alerts")
    items = [
        *own,
        *(_of_kill(kill.value) if kill.value else ()),
        *(_of_correctness(health.correctness) if health else ()),
        *(_of_verdicts(verdicts) if verdicts else ()),
        *(_of_rollouts(rollouts.value) if rollouts.value else ()),
        *(_of_proposers(health.breakers, health.drift) if health else ()),
        *(Attention("warn", f"{text}.", "/console/proposers#heads") for text in (heads.warnings if heads else ())),
    ]
    if policy.value is not None and policy.value.fault:
        items.append(Attention("warn", f"The policy's source is not in use: {policy.value.fault}", "/console/policy"))
    firing = list(_of_alerts(alerts.value, runbooks)) if alerts.value else []
    return sorted(_joined(items, firing), key=lambda item: _URGENCIES.index(item.urgency))


def _joined(items: Sequence[Attention], firing: Sequence[Attention]) -> Iterator[Attention]:
    """Yield what is found here, as urgent as the alert that fires for it, and the alerts for what is not."""
    urgencies = {item.alert: item.urgency for item in firing if item.alert}
    for item in items:
        others = [item.urgency, urgencies.get(item.alert, item.urgency)]
        yield replace(item, urgency=min(others, key=_URGENCIES.index))
    known = {item.alert for item in items}
    yield from (item for item in firing if not item.alert or item.alert not in known)


def _of_service(failing: str, service: ServiceReply) -> Iterator[Attention]:
    if failing:
        text = f"The server is not ready, so load balancers send it no requests: {failing}."
        yield Attention("bad", text, "/console/requests", "RequestsFail")
    for goal in service.missed:
        tier = f" of tier {goal.tier}" if goal.tier else ""
        text = f"{goal.num_missed} of {goal.num_requests} requests{tier} {goal.what} in the last five minutes."
        yield Attention("bad" if goal.burns else "warn", text, "/console/requests", goal.alert)


def _of_alerts(reply: AlertsReply, runbooks: Mapping[str, Runbook]) -> Iterator[Attention]:
    if reply.fault:
        yield Attention("warn", f"It is not known which alerts fire: {reply.fault}.", HOME)
    for alert in reply.alerts:
        if alert.name in runbooks:  # an Alertmanager may serve others too
            where = ", ".join(f"{name} {value}" for name, value in alert.labels.items() if name in _WHERE)
            text = f"{alert.summary}{f' ({where})' if where else ''}. It began {age(alert.since)}."
            yield Attention(_SEVERITIES.get(alert.severity, "info"), text, HOME, alert.name)


def _of_engine(health: EngineHealth, info: EngineInfo) -> Iterator[Attention]:
    """What readiness says of an engine, also of one that serves without a part, such as a pool of upstream engines."""
    is_ready = health.alive and health.ready
    if health.detail or not is_ready:
        alert = "UpstreamPoolDown" if info.forward.startswith(UPSTREAM) else "" if is_ready else "EngineStuck"
        state, why = "serves without a part" if is_ready else "is not ready", health.detail or "no reason is known"
        yield Attention(
            "warn" if is_ready else "bad", f"The engine {state}: {why.rstrip('.')}.", "/console/replicas", alert
        )


def _of_kill(status: KillStatus) -> Iterator[Attention]:
    if status.on:
        by = ", ".join(status.sources)
        yield Attention("bad", f"Speculation is stopped everywhere, by {by}.", "/console/kill", "KillSwitchOn")
    elif status.killed:
        yield Attention("warn", f"Speculation is stopped in: {', '.join(status.killed)}.", "/console/kill")
    for fault in (status.fault, status.not_saved):
        if fault:
            yield Attention("warn", f"Kill switch: {fault}", "/console/kill")


def _of_correctness(reply: CorrectnessReply) -> Iterator[Attention]:
    if wrong := reply.outcomes["structural"]:
        text = f"{wrong} replayed requests had other tokens than plain decoding gives."
        yield Attention("bad", text, "/console/quality", "OutputsDiffer")
    if reply.similarity.is_low:
        text = f"Replays have a similarity of {reply.similarity.mean:.2f} to their answers; rounding explains less."
        yield Attention("bad", text, "/console/quality", "OutputsDissimilar")


def _of_verdicts(reply: VerdictsReply) -> Iterator[Attention]:
    for one in reply.verdicts:
        if one.answer == "stop":
            path = f"/console/rollouts/{one.rollout}" if one.rollout else HOME
            yield Attention("warn", f"Rule {one.rule}: {one.verdict}. {one.rests_on}", path, "SpeculationShouldStop")


def _of_rollouts(reply: RolloutsReply) -> Iterator[Attention]:
    for rollout in reply.rollouts:
        path = f"/console/rollouts/{rollout.id}"
        if rollout.phase == "gate":
            yield Attention("info", f"Rollout of {rollout.rule} passed {rollout.stage} and waits for approval.", path)
        elif rollout.phase == "held":
            yield Attention("warn", f"Rollout of {rollout.rule} is held in {rollout.stage}.", path)
        elif rollout.phase == "rolled_back":
            yield Attention("warn", f"Rollout of {rollout.rule} was rolled back.", path, "RolloutRolledBack")


def _of_proposers(breakers: BreakersReply, drift: DriftReply) -> Iterator[Attention]:
    for breaker in breakers.breakers:
        if breaker.state in ("open", "half_open", "forced_open"):
            text = f"Breaker of {breaker.proposer} in {breaker.traffic_class} is {breaker.state.replace('_', ' ')}"
            text += f": {WHY[breaker.reason]}." if breaker.reason else "."
            yield Attention("warn", text, "/console/proposers#breakers", "BreakerOpen")
    for stream in drift.streams:
        where, page = f"{stream.proposer} in {stream.traffic_class}", "/console/quality#drift"
        if stream.status == "cliff":
            yield Attention("bad", f"Drafts of {where} are hardly ever right.", page, "AcceptanceCliff")
        elif stream.status == "drifted":
            yield Attention("warn", f"Acceptance of {where} is lower than usual.", page, "AcceptanceDrift")


def _store_attention(store: Store) -> Iterator[Attention]:
    health = store.writer.health()
    if not health.ok:
        yield Attention("bad", f"The store cannot be written; {health.num_queued} items wait.", HOME, "StoreDown")
    if lost := sum(health.dropped.values()):
        yield Attention("warn", f"{lost} records or audit entries were dropped since the start.", HOME, "RecordsLost")
