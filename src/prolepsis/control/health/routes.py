"""The admin routes of health: all verdicts in one table, and each kind with its figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from anyio import to_thread
from pydantic import Field

from prolepsis.control.controls.kill_switch import Reason, shown_reason
from prolepsis.control.health.breaker import Key, OperatorState, State
from prolepsis.control.health.breaker_runtime import BreakerReply, BreakerRuntime, BreakersReply
from prolepsis.control.health.drift import Status
from prolepsis.control.health.drift_runtime import DriftReply, DriftRuntime, DriftStreamReply
from prolepsis.control.health.eligibility import Judged
from prolepsis.control.health.eligibility_runtime import EligibilityReply, EligibilityRuntime
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, WATCHERS, Route, Routes
from prolepsis.core.facts import TRAFFIC_CLASS


class BreakerBody(Body):
    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]
    state: OperatorState
    reason: Reason = ""


class DriftResetBody(Body):
    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSetReply(BreakerReply):
    not_saved: str | None
    """Reason why the state holds only until the server ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerHealth:
    """The verdicts on one proposer in one traffic class; null: not judged."""

    proposer: str
    traffic_class: str
    breaker: State | None
    drift: Status | None
    benefit_gone: bool | None
    """Whether its drafts bring less than half of the tokens that they brought."""
    eligible: bool | None
    """Whether its traffic class meets all conditions that concern the proposer."""


@dataclass(frozen=True, slots=True)
class HealthReply:
    proposers: list[ProposerHealth]


def health_routes(
    breakers: BreakerRuntime,
    drift: DriftRuntime,
    eligibility: EligibilityRuntime,
    proposers: Callable[[], Sequence[str]],
) -> Sequence[Route]:
    """Return the routes; `proposers` of the engine are those whose breakers may be set."""
    routes = Routes()

    @routes.get("/admin/health", roles=READERS, summary="All verdicts on proposers, by proposer and traffic class")
    async def health() -> HealthReply:
        states = {key: one.state for key, one in breakers.breakers.all.items()} if breakers.breakers is not None else {}
        streams = {key: one.status for key, one in drift.streams.all.items()} if drift.streams is not None else {}
        gone, judged = drift.gone, eligibility.eligibility.judged
        counted = {place[:2] for place in eligibility.eligibility.figures}
        return HealthReply(
            [
                ProposerHealth(
                    proposer=key[0],
                    traffic_class=key[1],
                    breaker=states.get(key),
                    drift=streams.get(key),
                    benefit_gone=gone.get(key),
                    eligible=_is_eligible(key, judged),
                )
                for key in sorted(states.keys() | streams.keys() | gone.keys() | counted)
            ]
        )

    @routes.get("/admin/breakers", roles=WATCHERS, summary="Breakers by proposer and traffic class")
    async def all_breakers() -> BreakersReply:
        return breakers.shown

    @routes.put("/admin/breakers", roles=OPERATORS, summary="Set a breaker manually")
    async def set_breaker(body: Annotated[BreakerBody, read_body(BreakerBody)], caller: SignedIn) -> BreakerSetReply:
        if breakers.breakers is None:
            message = "Breakers are disabled; start the server with --breaker on or metrics_only."
            raise RequestRefused(message, code="breakers_off")
        known = proposers()
        if body.proposer not in known:
            message = f"proposer is {body.proposer!r}; allowed: {', '.join(known) or 'none is loaded'}"
            raise RequestRefused(message, code="invalid_value", param="proposer")
        reason = await to_thread.run_sync(shown_reason, body.reason)
        key = body.proposer, body.traffic_class
        breaker, fault = breakers.set(key, body.state, caller.actor, because=reason)
        return BreakerSetReply(**asdict(breakers.shown_one(breaker)), not_saved=fault or None)

    @routes.get("/admin/drift", roles=READERS, summary="Drift by proposer and traffic class")
    async def all_drift() -> DriftReply:
        return drift.shown

    @routes.post("/admin/drift/reset", roles=OPERATORS, summary="Start one stream again", errors=(404, 409))
    async def reset_drift(
        body: Annotated[DriftResetBody, read_body(DriftResetBody)], caller: SignedIn
    ) -> DriftStreamReply:
        stream = drift.reset((body.proposer, body.traffic_class), caller.actor)
        if stream is None:
            message = f"{body.proposer!r} has no stream in {body.traffic_class!r}; GET /admin/drift lists all streams"
            raise RequestRefused(message, code="unknown_stream", param="traffic_class", status=404)
        return stream

    summary = "Which traffic classes may verify drafts, and the figures that decide it"

    @routes.get("/admin/eligibility", roles=READERS, summary=summary)
    async def all_eligibility() -> EligibilityReply:
        return eligibility.shown

    return routes.all


def _is_eligible(key: Key, judged: Iterable[Judged]) -> bool | None:
    concerning = [
        condition.eligible
        for condition in judged
        if condition.traffic_class == key[1] and (condition.proposers is None or key[0] in condition.proposers)
    ]
    return all(concerning) if concerning else None
