"""The one place that puts the HTTP parts together."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from prolepsis.core.config import ServerConfig
from prolepsis.engine.client import EngineClient
from prolepsis.server.errors import install_error_handlers
from prolepsis.server.generation import generation_routes
from prolepsis.server.request_id import RequestIds
from prolepsis.server.room import Room
from prolepsis.server.status import status_routes
from prolepsis.server.tokenizer import Tokenizer
from prolepsis.telemetry.metrics import Metrics


def build(config: ServerConfig, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics) -> FastAPI:
    """Return the application around a running engine; when it shuts down it closes `client`."""

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncGenerator[None, None]:
        yield
        await client.close()

    info = client.info
    metrics.describe(model=info.model, forward=info.forward, exactness=info.exactness)
    app = FastAPI(title="Prolepsis", lifespan=closing, openapi_url=None, redirect_slashes=False)
    room = Room(config, client, tokenizer, started=int(time.time()))
    app.include_router(generation_routes(room))
    app.include_router(status_routes(room, metrics))
    install_error_handlers(app)
    app.add_middleware(RequestIds, metrics=metrics)
    return app
