"""The routes of the kill switch."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi.responses import JSONResponse
from pydantic import Field

from prolepsis.api.openai.usage import Json
from prolepsis.api.room import Room
from prolepsis.safety.kill_switch import KillStatus
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.fields import Body, Reply
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes


class KillBody(Body):
    on: bool
    reason: Annotated[str, Field(max_length=1024)] = ""


class KillOperator(Reply):
    on: bool
    by: str
    reason: str
    at: str


class KillFlag(Reply):
    on: bool
    variant: str | None
    reason: str


class Kill(Reply):
    """The kill switch: on while operator or flag say so."""

    on: bool
    sources: list[Literal["operator", "flag"]]
    operator: KillOperator
    flag: KillFlag | None
    fault: str | None
    """Why the kill file cannot be used."""


class KillTurned(Kill):
    not_kept: str | None
    """Why it holds only until the server ends."""


def kill_routes(room: Room) -> Sequence[Route]:
    routes = Routes()

    @routes.get("/admin/kill", roles=WATCHERS, summary="The kill switch, and the sources that keep it on", reply=Kill)
    async def kill_status() -> JSONResponse:
        return JSONResponse(shown_kill(room.watch.kill.status))

    @routes.put("/admin/kill", roles=OPERATORS, summary="Turn the operator's kill switch", reply=KillTurned)
    async def kill(body: Annotated[KillBody, read_body(KillBody)], caller: SignedIn) -> JSONResponse:
        before, who = shown_kill(room.watch.kill.status), caller.actor
        lost = room.watch.kill.turn(on=body.on, by=who, reason=body.reason)
        after = shown_kill(room.watch.kill.status)
        room.acts.kill_turned(who, before, after, on=body.on)
        return JSONResponse({**after, "not_kept": lost or None})

    return routes.all


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
