"""The routes of the kill switch."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi.responses import JSONResponse
from pydantic import Field

from prolepsis.api.room import Room
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
        return JSONResponse(room.watch.kill.status.plain())

    @routes.put("/admin/kill", roles=OPERATORS, summary="Turn the operator's kill switch", reply=KillTurned)
    async def kill(body: Annotated[KillBody, read_body(KillBody)], caller: SignedIn) -> JSONResponse:
        lost = room.watch.kill.turn(on=body.on, by=caller.actor, reason=body.reason)
        return JSONResponse({**room.watch.kill.status.plain(), "not_kept": lost or None})

    return routes.all
