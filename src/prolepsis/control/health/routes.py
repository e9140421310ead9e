"""/admin/health: what is judged of proposers, and every part of a feature; sets breakers and forgets drift."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, make_dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from anyio import to_thread
from pydantic import Field

from prolepsis.control.controls.kill_switch import Reason, shown_reason
from prolepsis.control.health.breaker import OperatorState, State
from prolepsis.control.health.breaker_runtime import BreakerReply, BreakerRuntime
from prolepsis.control.health.commands import HEALTH
from prolepsis.control.health.drift import Status
from prolepsis.control.health.drift_runtime import DriftRuntime, DriftStreamReply
from prolepsis.control.web.body_reader import read_body, read_query
from prolepsis.control.web.caller import SignedIn
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import OPERATORS, READERS, Route, Routes
from prolepsis.core.facts import TRAFFIC_CLASS


class DriftResetQuery(Body):
    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]


class BreakerBody(DriftResetQuery):
    state: OperatorState
    reason: Reason = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSetReply(BreakerReply):
    not_saved: str | None  # reason why the state holds only until the server ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerHealth:
    """What is judged of one proposer in one traffic class; null: not judged."""

    proposer: str
    traffic_class: str
    breaker: State | None
    drift: Status | None
    benefit_gone: bool | None  # whether its drafts bring less than half of the tokens that they brought
    eligible: bool | None  # whether its traffic class meets all conditions that concern the proposer


class HealthPage(Feature):
    """The parts of all features, which each names in `Feature.health_parts`, as one reply."""

    name = "health_page"

    def __init__(self, features: Sequence[Feature]) -> None:
        parts = {name: read for feature in features for name, read in feature.health_parts.items()}
        kinds = [(name, get_type_hints(read)["return"]) for name, read in parts.items()]
        reply = _reply_of(*kinds)
        routes = Routes()
        self.routes = routes.all

        @routes.get(HEALTH, roles=READERS, summary="What is judged of proposers, and how", reply=reply)
        async def health() -> object:
            return reply(**{name: read() for name, read in parts.items()})


@cache
def _reply_of(*kinds: tuple[str, Any]) -> type[Any]:
    """Return the class of the reply, by the parts' names and kinds."""
    return make_dataclass("HealthReply", kinds, frozen=True, slots=True)


def health_routes(
    breakers: BreakerRuntime, drift: DriftRuntime, proposers: Callable[[], Sequence[str]]
) -> Sequence[Route]:
    """Return the routes that change it; `proposers` of the engine are those whose breakers may be set."""
    routes = Routes()

    @routes.put(HEALTH, roles=OPERATORS, summary="Set a breaker manually")
    async def set_breaker(body: Annotated[BreakerBody, read_body(BreakerBody)], caller: SignedIn) -> BreakerSetReply:
        if not breakers.enabled:
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

    @routes.delete(HEALTH, roles=OPERATORS, summary="Forget one stream of drift, which starts again", errors=(404, 409))
    async def reset_drift(
        query: Annotated[DriftResetQuery, read_query(DriftResetQuery)], caller: SignedIn
    ) -> DriftStreamReply:
        stream = drift.reset((query.proposer, query.traffic_class), caller.actor)
        if stream is None:
            message = f"{query.proposer!r} has no stream in {query.traffic_class!r}; GET {HEALTH} lists all streams"
            raise RequestRefused(message, code="unknown_stream", param="traffic_class", status=404)
        return stream

    return routes.all
