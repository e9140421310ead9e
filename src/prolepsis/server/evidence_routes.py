"""Administrative routes: what was measured of speculation, at the contract boundary and over time."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from prolepsis.server.body_reader import read_body
from prolepsis.server.caller import caller_of
from prolepsis.server.errors import RequestRefused
from prolepsis.server.evidence_replies import DriftResetBody, contract_reply, drift_reply, shadow_reply, stream_reply
from prolepsis.server.room import Room


def evidence_routes(room: Room) -> APIRouter:
    router = APIRouter()

    @router.get("/admin/contract")
    async def contract() -> JSONResponse:
        return JSONResponse(contract_reply(room.boundary).model_dump())

    @router.get("/admin/shadow")
    async def shadow() -> JSONResponse:
        return JSONResponse(shadow_reply(room.shadow.evidence).model_dump())

    @router.get("/admin/drift")
    async def drift() -> JSONResponse:
        return JSONResponse(drift_reply(room.watch.drift).model_dump())

    @router.post("/admin/drift/reset")
    async def reset_drift(request: Request) -> JSONResponse:
        body = await read_body(request, DriftResetBody, room.config.max_body_bytes)
        key, watch = (body.proposer, body.slice), room.watch.drift
        before = None if watch is None else watch.streams.get(key)
        if watch is None or before is None:
            message = f"nothing is known of {body.proposer!r} in {body.slice!r}; GET /admin/drift has what is"
            raise RequestRefused(message, code="unknown_stream", param="slice", status=404)
        shown = stream_reply(key, before, watch).model_dump()
        fresh = watch.reset(*key)
        room.acts.drift_reset(caller_of(request).actor, *key, shown)
        return JSONResponse(stream_reply(key, fresh, watch).model_dump())

    return router
