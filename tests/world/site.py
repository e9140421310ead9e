"""A site: an application around any engine, called without a network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from prolepsis.control.web.feature import Feature
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.text.tokenizer import Tokenizer
from tests.server.application import build, feature_of
from tests.server.fakes import ByteTokenizer, FakeEngine

Wanted = TypeVar("Wanted", bound=Feature)
NO_START = ServerConfig(limits=LimitTerms(start_drafts=0))
"""No careful start: the first requests speculate as deeply as all others."""


class Site:
    def __init__(
        self,
        engine: EngineClient | None = None,
        config: ServerConfig | None = None,
        *,
        folder: Path = Path(),
        policy: Any = None,
        tokenizer: Tokenizer | None = None,
        **parts: Any,
    ) -> None:
        """`policy`: a text, which is written to a file in `folder`, or what `build` takes, as are the other `parts`."""
        if isinstance(policy, str):
            text, policy = policy, folder / "policy.yaml"
            policy.write_text(text)
        self.engine: Any = engine or FakeEngine()
        self.metrics = Metrics()
        self.app = build(
            config or ServerConfig(), self.engine, tokenizer or ByteTokenizer(), self.metrics, policy=policy, **parts
        )
        self.http = self.client()

    def client(self, **headers: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app), base_url="http://localhost", headers=headers
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Yield the client while the features run."""
        async with self.app.router.lifespan_context(self.app), self.http as http:
            yield http

    def feature(self, kind: type[Wanted]) -> Wanted:
        return feature_of(self.app, kind)

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        reply = await self.http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).json()

    async def tick(self, *features: str) -> None:
        """Let the named features do what is due, or all."""
        for feature in self.app.state.features:
            if not features or feature.name in features:
                await feature.tick()

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"prolepsis_{name}", labels)
