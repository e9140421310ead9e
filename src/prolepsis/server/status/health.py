"""Routes for the models served, health and version; what requests get decides too whether a server is ready."""

from collections.abc import Sequence
from typing import Literal

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from pydantic import Field

from prolepsis import __version__
from prolepsis.control.controls.kill_switch_runtime import KillSwitch
from prolepsis.control.web.caller import Known
from prolepsis.control.web.fields import Reply
from prolepsis.control.web.routes import ANY_ROLE, OPEN, PUBLIC, WATCHERS, Route, Routes
from prolepsis.core.engine_client import EngineClient
from prolepsis.server.admission.controller import AdmissionController
from prolepsis.server.status.recorder import Recorder, StoreState
from prolepsis.server.status.service_health import DeepHealth, ServiceHealth


class Live(Reply):
    live: bool
    detail: str


class Readiness(Reply):
    """What a caller without a key learns."""

    ready: bool


class Ready(Readiness):
    detail: str
    model: str
    forward: str
    exactness: Literal["strict", "normal"]
    exactness_reason: str
    proposers: Sequence[str]
    draft_head: str | None
    draft_head_reason: str  # how it was found, or why there is none
    paying_loads: str  # at which loads drafts can pay here, by the measured cost of passes; empty: not measured
    num_running: int
    num_waiting: int
    kv_usage: float = Field(ge=0, le=1)
    store: StoreState | None
    killed_by: Sequence[Literal["operator", "store", "flag"]]


class ServerLoad(Reply):
    server_load: int  # as vLLM names it


class Version(Reply):
    version: str


def status_routes(
    client: EngineClient, gate: AdmissionController, service: ServiceHealth, records: Recorder, kill_switch: KillSwitch
) -> Sequence[Route]:
    routes = Routes()

    def readiness() -> Ready:
        health, info, draining = gate.health(), client.info, gate.draining
        is_ready, failing = health.alive and health.ready, service.detail
        return Ready(
            ready=is_ready and not draining and not failing,
            detail="shutting down" if draining else failing if is_ready and failing else health.detail,
            model=info.model,
            forward=info.forward,
            exactness=info.exactness,
            exactness_reason=info.exactness_reason,
            proposers=info.proposers,
            draft_head=info.draft_head,
            draft_head_reason=info.draft_head_reason,
            paying_loads=info.paying_loads,
            num_running=health.num_running,
            num_waiting=health.num_waiting,
            kv_usage=health.kv_usage,
            store=records.readiness(),
            killed_by=kill_switch.status.sources,
        )

    @routes.get("/health/live", roles=PUBLIC, summary="Whether the process lives", may_fail=True)
    async def live(response: Response) -> Live:
        health = client.health()
        response.status_code = 200 if health.alive else 503
        return Live(live=health.alive, detail=health.detail)

    @routes.get("/ping", roles=OPEN, summary="Whether the engine is ready", may_fail=True)
    @routes.get("/health", roles=OPEN, summary="Whether the engine is ready", may_fail=True)
    @routes.get("/health/ready", roles=OPEN, summary="Whether the engine is ready", may_fail=True)
    async def ready(response: Response, caller: Known) -> Ready | Readiness:
        ready = readiness()
        response.status_code = 200 if ready.ready else 503
        return ready if caller is not None else Readiness(ready=ready.ready)

    @routes.get("/health/deep", roles=WATCHERS, summary="Whether the engine generates tokens", may_fail=True)
    async def deep(response: Response) -> DeepHealth:
        health = await service.deep_check.result()
        response.status_code = 200 if health.healthy else 503
        return health

    @routes.get("/load", roles=ANY_ROLE, summary="Requests that run or wait")
    async def load() -> ServerLoad:
        health = client.health()
        return ServerLoad(server_load=health.num_running + health.num_waiting)

    @routes.get("/", roles=PUBLIC, summary="The playground, for a browser", documented=False)
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/console/playground")
        return PlainTextResponse("Prolepsis is running")

    @routes.get("/docs", roles=PUBLIC, summary="The API in the console", documented=False)
    async def docs() -> Response:
        return RedirectResponse("/console/api")

    @routes.get("/version", roles=ANY_ROLE, summary="Version of the server")
    async def version() -> Version:
        return Version(version=__version__)

    @routes.get("/openapi.json", roles=ANY_ROLE, summary="The OpenAPI document", documented=False)
    async def document(request: Request) -> JSONResponse:
        return JSONResponse(request.app.openapi())

    return routes.all
