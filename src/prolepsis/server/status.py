"""What the server says of itself: models, health, version, metrics."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from prolepsis import __version__
from prolepsis.server.caller import caller_of
from prolepsis.server.deep_health import DeepCheck
from prolepsis.server.formats import Json
from prolepsis.server.room import Room
from prolepsis.telemetry.metrics import CONTENT_TYPE, Metrics


def status_routes(room: Room, metrics: Metrics) -> APIRouter:
    router = APIRouter()
    deep_check = DeepCheck(room.client)

    @router.get("/v1/models")
    async def models(request: Request) -> JSONResponse:
        names = [name for name in room.model_names if caller_of(request).may_use(name)]
        return JSONResponse({"object": "list", "data": [_model(name, room) for name in names]})

    @router.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> JSONResponse:
        room.check_model(name, caller_of(request))
        return JSONResponse(_model(name, room))

    @router.get("/health/live")
    async def live() -> JSONResponse:
        health = room.client.health()
        return JSONResponse({"live": health.alive, "detail": health.detail}, 200 if health.alive else 503)

    @router.get("/health")
    @router.get("/health/ready")
    async def ready() -> JSONResponse:
        ready = _readiness(room)
        return JSONResponse(ready, 200 if ready["ready"] else 503)

    @router.get("/health/deep")
    async def deep() -> JSONResponse:
        health = await deep_check.result()
        shown = {"healthy": health.healthy, "detail": health.detail, "ms": health.ms}
        return JSONResponse(shown, 200 if health.healthy else 503)

    @router.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": __version__})

    @router.get("/metrics")
    async def scrape() -> Response:
        health = room.client.health()
        metrics.set_load(health.num_running, health.num_waiting, health.kv_usage)
        return Response(metrics.exposition(), media_type=CONTENT_TYPE)

    return router


def _model(name: str, room: Room) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": room.started,
        "owned_by": "prolepsis",
        "root": room.client.info.model,
        "max_model_len": room.client.info.max_model_len,
    }


def _readiness(room: Room) -> Json:
    health, info = room.client.health(), room.client.info
    return {
        "ready": health.alive and health.ready and not room.gate.draining,
        "detail": "shutting down" if room.gate.draining else health.detail,
        "model": info.model,
        "forward": info.forward,
        "exactness": info.exactness,
        "exactness_reason": info.exactness_reason,
        "proposers": info.proposers,
        "draft_head": info.draft_head,
        "num_running": health.num_running,
        "num_waiting": health.num_waiting,
        "kv_usage": health.kv_usage,
        "store": room.recorder.readiness(),
        "killed_by": room.watch.kill.status.sources,
    }
