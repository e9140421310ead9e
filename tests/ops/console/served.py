"""An application behind a real server, for a real browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import uvicorn
from fastapi import FastAPI

from prolepsis.core.config import ServerConfig
from prolepsis.server.run import bind
from tests.ops.console.scene import Scene, key_with, scene
from tests.server_thread import running

ASKED = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/v1/completions", {"prompt": "Hi"}),
)


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    listener = bind(ServerConfig(port=0))
    with running(uvicorn.Config(app, log_config=None, lifespan="on"), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def served_scene(folder: Path, *, with_keys: bool) -> Iterator[tuple[str, Scene]]:
    with scene(folder, with_keys=with_keys) as site, served(site.app) as url:
        yield url, site


def traffic(url: str, site: Scene, number: int) -> None:
    """Serve so many pairs of requests, and wait until the store has them."""
    headers = {"authorization": f"Bearer {key_with(site, 'client')}"}
    with httpx2.Client(base_url=url, headers=headers) as http:
        for _ in range(number):
            for path, asked in ASKED:
                http.post(path, json={"model": "tiny", "max_tokens": 64, **asked}).raise_for_status()
    assert site.store.writer.flush(60.0)
