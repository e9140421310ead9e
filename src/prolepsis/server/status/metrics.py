"""Serves the metrics, and feeds them with requests that have ended and with what serves now."""

import time
from collections.abc import Callable
from functools import partial

from anyio import to_thread
from fastapi import Request
from fastapi.responses import Response

from prolepsis import __version__
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.routes import WATCHERS, Routes
from prolepsis.core.config import ServerConfig
from prolepsis.core.ended import RequestEnded
from prolepsis.core.engine_client import EngineClient, EngineHealth
from prolepsis.core.telemetry.metrics import BuildInfo, Metrics


class MetricsFeature(Feature):
    """Belongs to one event loop."""

    name = "metrics"
    period_s = 1.0

    def __init__(
        self,
        metrics: Metrics,
        config: ServerConfig,
        client: EngineClient,
        *,
        policy: Callable[[], str] = str,
        health: Callable[[], EngineHealth] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy` returns the version of the policy in use, empty without one; `health` the load, default: the
        engine's.
        """
        self._health = health or client.health
        self._metrics = metrics
        self._config = config
        self._client = client
        self._policy = policy
        self._clock = clock
        self._began = clock()
        self._ready = False
        routes = Routes()
        self.routes = routes.all

        @routes.get("/metrics", roles=WATCHERS, summary="Metrics for Prometheus", reply=str)
        async def scrape(request: Request) -> Response:
            shown, content_type = await self._exposition(request.headers.get("accept", ""))
            return Response(shown, media_type=content_type)

    async def tick(self) -> None:
        if not self._ready and self._client.health().ready:
            self._ready = True
            self._metrics.startup.ready(self._clock() - self._began)

    def on_request_end(self, ended: RequestEnded) -> None:
        self._metrics.requests.ended(ended)
        if not self._ready:
            self._metrics.startup.cold_requests.inc()

    async def _exposition(self, accept: str) -> tuple[bytes, str]:
        """Write all series in a worker thread: thousands of them take longer than a token.

        Not in one of asyncio's own, which are few: work on the store waits there while its database hangs.
        """
        health, info = self._health(), self._client.info
        self._metrics.set_load(health.num_running, health.num_waiting, health.kv_usage, ready=health.ready)
        self._metrics.describe(
            BuildInfo(
                version=__version__,
                model=info.model,
                forward=info.forward,
                exactness=info.exactness,
                draft_head=info.draft_head or "",
                policy=self._policy(),
                region=self._config.region,
            )
        )
        model = self._config.served_model_names[0] if self._config.served_model_names else info.model
        vllm_model = model if self._config.metrics_vllm_names else None
        return await to_thread.run_sync(partial(self._metrics.exposition_for, accept, vllm_model=vllm_model))
