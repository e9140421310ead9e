"""Whether the engine really generates: one token through all of it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from prolepsis import __version__
from prolepsis.api.openai.usage import Json
from prolepsis.api.room import Room
from prolepsis.core.events import Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.engine.client import EngineClient
from prolepsis.telemetry.metrics import CONTENT_TYPE, Metrics
from prolepsis.web.caller import caller_of
from prolepsis.web.errors import describe_error

CACHED_S = 1.0
TIMEOUT_S = 10.0
SCOPE = "health"


@dataclass(frozen=True, slots=True)
class DeepHealth:
    healthy: bool
    detail: str
    ms: float
    """How long the token took."""


class DeepCheck:
    """Asks for one token; answers within a second of the last, and those that ask meanwhile, share one result."""

    def __init__(self, client: EngineClient, *, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._asking = asyncio.Lock()
        self._last: tuple[float, DeepHealth] | None = None

    async def result(self) -> DeepHealth:
        async with self._asking:
            if self._last is None or time.monotonic() - self._last[0] > CACHED_S:
                health = await self._ask()
                self._last = (time.monotonic(), health)
            return self._last[1]

    async def _ask(self) -> DeepHealth:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout_s):
                detail = await self._one_token()
        except TimeoutError:
            detail = f"no token within {self._timeout_s:g} s"
        except Exception as error:  # a health check says what is wrong, whatever it is
            detail = describe_error(error).message
        ms = round(1000 * (time.monotonic() - started), 3)
        return DeepHealth(not detail, detail or "one token was generated", ms)

    async def _one_token(self) -> str:
        """Return what went wrong, or nothing."""
        request = GenerateRequest(
            request_id=f"health-{uuid4().hex}",
            prompt_token_ids=(0,),
            params=SamplingParams(temperature=0.0, max_tokens=1),
            priority=-(2**31),
            scope=SCOPE,
            speculation=SpeculationChoice("off"),
        )
        num_tokens, finished = 0, False
        events = self._client.generate(request)
        try:
            async for event in events:
                num_tokens += len(event.token_ids) if isinstance(event, Tokens) else 0
                finished = isinstance(event, Finished)
        finally:
            if isinstance(events, AsyncGenerator):
                await events.aclose()
        return "" if finished and num_tokens else "the engine ended without a token"


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
