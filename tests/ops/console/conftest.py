from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.telemetry.logs import configure_logs
from tests.ops.console.scene import Scene, scene


@pytest.fixture(autouse=True)
def few_logs() -> None:
    configure_logs("error")


@pytest.fixture
def open_scene(tmp_path: Path) -> Iterator[Scene]:
    """A server without keys: every caller on this machine is the developer."""
    with scene(tmp_path) as made:
        yield made


@pytest.fixture
def keyed_scene(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, with_keys=True) as made:
        yield made


@pytest.fixture
async def browse() -> AsyncIterator[Callable[[Scene], httpx2.AsyncClient]]:
    """Give clients that keep cookies, as browsers do."""
    clients: list[httpx2.AsyncClient] = []

    def connect(site: Scene) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(site.app)
        clients.append(httpx2.AsyncClient(transport=transport, base_url="http://localhost:8000"))
        return clients[-1]

    yield connect
    for one in clients:
        await one.aclose()
