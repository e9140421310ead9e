"""/admin: what operators see and do while the server runs."""

from typing import cast, get_args

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from prolepsis.control.rollouts.commands import Command
from prolepsis.core.errors import RolloutNotFound
from prolepsis.server.body_reader import read_body
from prolepsis.server.caller import caller_of
from prolepsis.server.errors import RequestRefused
from prolepsis.server.rollout_replies import (
    RolloutCommandBody,
    RolloutCommandName,
    RolloutListReply,
    shown,
    shown_with,
)
from prolepsis.server.rollouts import Rollouts
from prolepsis.server.room import Room


def admin_routes(room: Room) -> APIRouter:
    router = APIRouter()

    @router.get("/admin/rollouts")
    async def rollouts() -> JSONResponse:
        views = [] if room.policies is None else await room.policies.rollouts.views()
        return JSONResponse(RolloutListReply(rollouts=[shown(view) for view in views]).model_dump())

    @router.get("/admin/rollouts/{rollout_id}")
    async def rollout(rollout_id: str) -> JSONResponse:
        held = _rollouts(room)
        view = await held.view(rollout_id)
        return JSONResponse(shown_with(view, await held.events(rollout_id)).model_dump())

    @router.post("/admin/rollouts/{rollout_id}/{command}")
    async def command(request: Request, rollout_id: str, command: str) -> JSONResponse:
        body = await read_body(request, RolloutCommandBody, room.config.max_body_bytes)
        known = get_args(RolloutCommandName)
        if command not in known:
            message = f"command is {command[:64]!r}; allowed: {', '.join(known)}"
            raise RequestRefused(message, code="unknown_command", param="command", status=404)
        who = caller_of(request).key_id or "the developer"
        reason = f"by {who}: {body.reason}" if body.reason else f"by {who}"
        view = await _rollouts(room).command(rollout_id, cast(Command, command.replace("-", "_")), reason)
        return JSONResponse(shown(view).model_dump())

    return router


def _rollouts(room: Room) -> Rollouts:
    if room.policies is None:
        message = "there are no rollouts, as this server has no policy: neither `serve --policy` nor a store with one"
        raise RolloutNotFound(message, param="rollout_id")
    return room.policies.rollouts
