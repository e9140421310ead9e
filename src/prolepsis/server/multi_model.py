"""Several models behind one address: one application per model.

The first application answers generation requests for all models, each with that model's engine (`app.build`, `others`).
Every application is also served as a whole at /models/NAME, for routes that name no model: admin, metrics and health.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

PREFIX = "/models/"


class MultiModelApp:
    """An ASGI application that combines the applications of several models, given by model name."""

    def __init__(self, apps: Mapping[str, FastAPI]) -> None:
        self._first, *_ = apps.values()
        self._by_prefix = {f"{PREFIX}{name}": app for name, app in apps.items()}
        self._lifespan = Starlette(lifespan=self._alive)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        path: str = scope["path"]
        raw: bytes = scope.get("raw_path") or path.encode()
        prefixes = (prefix for prefix in self._by_prefix if path.startswith(f"{prefix}/"))
        prefix = max(prefixes, key=len, default="")
        rest = {"path": path.removeprefix(prefix), "raw_path": raw.removeprefix(prefix.encode())}
        await self._by_prefix.get(prefix, self._first)({**scope, **rest}, receive, send)

    @asynccontextmanager
    async def _alive(self, _: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as stack:
            for app in self._by_prefix.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield
