"""Administrative routes: the kill switch and the breakers, seen and set by hand."""

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from prolepsis.api.openai.usage import Json
from prolepsis.api.room import Room
from prolepsis.core.facts import TRAFFIC_CLASS
from prolepsis.safety.breaker import Breaker, ByHand
from prolepsis.safety.breaker_watch import BreakerWatch
from prolepsis.safety.kill_switch import KillStatus
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import caller_of
from prolepsis.web.errors import RequestRefused
from prolepsis.web.fields import Body


class KillBody(Body):
    on: bool
    reason: Annotated[str, Field(max_length=1024)] = ""


class BreakerBody(Body):
    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]
    state: ByHand


def watch_routes(room: Room) -> APIRouter:
    router = APIRouter()
    max_bytes = room.config.max_body_bytes

    @router.get("/admin/kill")
    async def kill_status() -> JSONResponse:
        return JSONResponse(shown_kill(room.watch.kill.status))

    @router.put("/admin/kill")
    async def kill(request: Request) -> JSONResponse:
        body = await read_body(request, KillBody, max_bytes)
        before, who = shown_kill(room.watch.kill.status), caller_of(request).actor
        lost = room.watch.kill.turn(on=body.on, by=who, reason=body.reason)
        after = shown_kill(room.watch.kill.status)
        room.acts.kill_turned(who, before, after, on=body.on)
        return JSONResponse({**after, "not_kept": lost or None})

    @router.get("/admin/breakers")
    async def breakers() -> JSONResponse:
        watch = room.watch.breakers
        shown = [] if watch is None else [_shown(breaker, watch) for breaker in watch.breakers]
        return JSONResponse({"enabled": watch is not None, "breakers": shown})

    @router.put("/admin/breakers")
    async def set_breaker(request: Request) -> JSONResponse:
        body = await read_body(request, BreakerBody, max_bytes)
        watch = _watch(room)
        known = room.client.info.proposers
        if body.proposer not in known:
            message = f"proposer is {body.proposer!r}; allowed: {', '.join(known) or 'none is loaded'}"
            raise RequestRefused(message, code="invalid_value", param="proposer")
        breaker, lost = watch.set(body.proposer, body.traffic_class, body.state, caller_of(request).actor)
        return JSONResponse({**_shown(breaker, watch), "not_kept": lost or None})

    return router


def shown_kill(status: KillStatus) -> Json:
    """Return the kill switch's state for programs."""
    operator, flag = status.operator, status.flag
    return {
        "on": status.on,
        "sources": status.sources,
        "operator": {"on": operator.on, "by": operator.by, "reason": operator.reason, "at": operator.at.isoformat()},
        "flag": None if flag is None else {"on": flag.value, "variant": flag.variant, "reason": flag.reason},
        "fault": status.fault or None,
    }


def _watch(room: Room) -> BreakerWatch:
    if room.watch.breakers is None:
        raise RequestRefused(
            "breakers are off here; breaker says on or metrics_only where they are not", code="breakers_off"
        )
    return room.watch.breakers


def _shown(breaker: Breaker, watch: BreakerWatch) -> Json:
    window = breaker.window
    return {
        "proposer": breaker.proposer,
        "traffic_class": breaker.traffic_class,
        "state": breaker.state,
        "acceptance": window.acceptance,
        "judged": window.judged,
        "spent": window.spent,
        "gained": window.gained,
        "rounds": window.rounds,
        "errors_in_row": breaker.seen.errors_in_row,
        "late_in_row": breaker.seen.late_in_row,
        "probed_in_s": watch.open_for_s(breaker),
    }
