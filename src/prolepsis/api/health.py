"""Routes for the models served, health and version; the deep health check generates one token."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from prolepsis import __version__
from prolepsis.api.recorder import StoreState
from prolepsis.api.services import Models, Services
from prolepsis.core.events import Finished, Tokens
from prolepsis.core.requests import GenerateRequest, SamplingDefaults, SamplingParams, SpeculationChoice
from prolepsis.engine.client import EngineClient
from prolepsis.web.caller import SignedIn
from prolepsis.web.errors import describe_error
from prolepsis.web.fields import Reply
from prolepsis.web.routes import ANY_ROLE, PUBLIC, WATCHERS, Route, Routes

CACHED_S = 1.0
TIMEOUT_S = 10.0
SCOPE = "health"


@dataclass(frozen=True, slots=True)
class DeepHealth:
    healthy: bool
    detail: str
    ms: float
    """Time that the token took."""


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
        except Exception as error:  # a health check reports every failure
            detail = str(describe_error(error))
        ms = round(1000 * (time.monotonic() - started), 3)
        return DeepHealth(not detail, detail or "one token was generated", ms)

    async def _one_token(self) -> str:
        """Return what went wrong, or nothing."""
        request = GenerateRequest(
            request_id=f"health-{uuid4().hex}",
            prompt_token_ids=(0,),
            params=SamplingParams(temperature=0.0, max_tokens=1),
            priority=-(2**31),
            cache_salt=SCOPE,
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


class Model(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    default_sampling: SamplingDefaults
    """Values for sampling parameters that requests leave out."""


class ModelList(Reply):
    object: Literal["list"]
    data: list[Model]


class Live(Reply):
    live: bool
    detail: str


class Ready(Reply):
    ready: bool
    detail: str
    model: str
    forward: str
    exactness: Literal["strict", "normal"]
    exactness_reason: str
    proposers: Sequence[str]
    draft_head: str | None
    num_running: int
    num_waiting: int
    kv_usage: float = Field(ge=0, le=1)
    store: StoreState | None
    killed_by: Sequence[Literal["operator", "store", "flag"]]


class Version(Reply):
    version: str


def status_routes(all_models: Models, services: Services) -> Sequence[Route]:
    """Return the routes that list the models, and those about the health of one, `services`."""
    routes = Routes()
    deep_check = DeepCheck(services.client)

    @routes.get("/v1/models", roles=ANY_ROLE, summary="Served models")
    async def models(caller: SignedIn) -> ModelList:
        return ModelList(object="list", data=[_model(name, one) for name, one in all_models.allowed(caller).items()])

    @routes.get("/v1/models/{name:path}", roles=ANY_ROLE, summary="One model")
    async def model(name: str, caller: SignedIn) -> Model:
        return _model(name, all_models.of(name, caller))

    @routes.get("/health/live", roles=PUBLIC, summary="Whether the process lives", may_fail=True)
    async def live(response: Response) -> Live:
        health = services.client.health()
        response.status_code = 200 if health.alive else 503
        return Live(live=health.alive, detail=health.detail)

    @routes.get("/health", roles=ANY_ROLE, summary="Whether the engine is ready", may_fail=True)
    @routes.get("/health/ready", roles=ANY_ROLE, summary="Whether the engine is ready", may_fail=True)
    async def ready(response: Response) -> Ready:
        ready = _readiness(services)
        response.status_code = 200 if ready.ready else 503
        return ready

    @routes.get("/health/deep", roles=WATCHERS, summary="Whether the engine generates a token", may_fail=True)
    async def deep(response: Response) -> DeepHealth:
        health = await deep_check.result()
        response.status_code = 200 if health.healthy else 503
        return health

    @routes.get("/version", roles=ANY_ROLE, summary="Version of the server")
    async def version() -> Version:
        return Version(version=__version__)

    @routes.get("/openapi.json", roles=ANY_ROLE, summary="The OpenAPI document", documented=False)
    async def document(request: Request) -> JSONResponse:
        return JSONResponse(request.app.openapi())

    return routes.all


def _model(name: str, services: Services) -> Model:
    info = services.client.info
    return Model(
        id=name,
        object="model",
        created=services.started,
        owned_by="prolepsis",
        root=info.model,
        max_model_len=info.max_model_len,
        default_sampling=info.default_sampling,
    )


def _readiness(services: Services) -> Ready:
    health, info, draining = services.admission.health(), services.client.info, services.admission.draining
    return Ready(
        ready=health.alive and health.ready and not draining,
        detail="shutting down" if draining else health.detail,
        model=info.model,
        forward=info.forward,
        exactness=info.exactness,
        exactness_reason=info.exactness_reason,
        proposers=info.proposers,
        draft_head=info.draft_head,
        num_running=health.num_running,
        num_waiting=health.num_waiting,
        kv_usage=health.kv_usage,
        store=services.features.recorder.readiness(),
        killed_by=services.features.safety.kill_switch.status.sources,
    )
