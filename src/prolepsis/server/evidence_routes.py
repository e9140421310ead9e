"""Administrative routes: what was measured of speculation at the contract boundary."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from prolepsis.server.evidence_replies import contract_reply
from prolepsis.server.room import Room


def evidence_routes(room: Room) -> APIRouter:
    router = APIRouter()

    @router.get("/admin/contract")
    async def contract() -> JSONResponse:
        return JSONResponse(contract_reply(room.boundary).model_dump())

    return router
