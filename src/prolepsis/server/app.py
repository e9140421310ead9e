"""The one place that puts the HTTP parts together."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from fastapi import FastAPI

from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.client import EngineClient
from prolepsis.server.admin import admin_routes
from prolepsis.server.door.exposure import check_exposure
from prolepsis.server.door.gate import Gate
from prolepsis.server.door.guard import Guard
from prolepsis.server.door.keys import Keys
from prolepsis.server.door.refusals import count_refusal
from prolepsis.server.errors import install_error_handlers
from prolepsis.server.generation import generation_routes
from prolepsis.server.openapi import openapi_routes
from prolepsis.server.policies import Policies
from prolepsis.server.recorder import Recorder
from prolepsis.server.request_id import RequestIds
from prolepsis.server.room import Room
from prolepsis.server.status import status_routes
from prolepsis.server.tokenization import tokenization_routes
from prolepsis.server.tokenizer import Tokenizer
from prolepsis.server.tracing import Traces
from prolepsis.store.store import Store
from prolepsis.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Door:
    """What decides who comes in and what is shed; without a key file, callers on this machine are the developer."""

    keys: Keys = field(default_factory=lambda: Keys(None))
    base_plan: SpecPlan = field(default_factory=SpecPlan)
    """The engine's plan while nothing is shed."""


def build(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    door: Door | None = None,
    *,
    policies: Policies | None = None,
    store: Store | None = None,
) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes `client`.

    Without `policies` callers decide alone how they speculate; without `store` no requests are recorded, and who opened
    one closes it. The application's `state.gate` is what a server drains, in `state.door_metrics` it counts the
    connections it refuses. Raises `ConfigError` where the address asks for keys and there are none.
    """
    door = door or Door()
    check_exposure(config, door.keys)
    gate = Gate(config, client, metrics.door, door.base_plan)

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncGenerator[None, None]:
        running = [gate.run(), *([policies.rollouts.run()] if policies else [])]
        tasks = [asyncio.create_task(one) for one in running]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        gate.end_waiting()
        await client.close()

    info = client.info
    metrics.describe(model=info.model, forward=info.forward, exactness=info.exactness)
    app = FastAPI(title="Prolepsis", lifespan=closing, openapi_url=None, redirect_slashes=False)
    app.state.gate = gate
    app.state.door_metrics = metrics.door
    room = Room(config, client, tokenizer, gate, int(time.time()), policies, Recorder(store, config.store_sample))
    for router in (
        generation_routes(room),
        tokenization_routes(room),
        status_routes(room, metrics),
        admin_routes(room),
        openapi_routes(),
    ):
        app.include_router(router)
    install_error_handlers(app, partial(count_refusal, metrics=metrics.door))
    app.add_middleware(Guard, keys=door.keys, config=config, metrics=metrics.door)
    app.add_middleware(RequestIds, metrics=metrics)
    app.add_middleware(Traces)
    return app
