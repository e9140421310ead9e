from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.server.conftest import steady
from tests.server.fakes import ByteTokenizer
from tests.world.site import Site


class KeyedApp:
    """A key file, and applications that use it."""

    def __init__(self, folder: Path) -> None:
        self.file = KeyFile(folder / "keys.json")
        self.metrics = Metrics()
        self.app: FastAPI

    def key(self, *roles: str, tenant: str = "acme", tier: str = "standard", models: tuple[str, ...] = ()) -> str:
        record, key = new_key(tenant, roles=roles or ("client",), tier=tier, models=models)
        self.file.add(record)
        return key

    def open(
        self, engine: EngineClient, config: ServerConfig | None = None, tokenizer: ByteTokenizer | None = None
    ) -> httpx2.AsyncClient:
        """Return a client of a new application; keys must have been made before."""
        site = Site(engine, steady(config or ServerConfig()), tokenizer=tokenizer, keys=Keys(self.file))
        self.app, self.metrics = site.app, site.metrics
        return site.http

    def refused(self, reason: str) -> float:
        return self.metrics.registry.get_sample_value("prolepsis_admission_refused_total", {"reason": reason}) or 0


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def keyed_app(tmp_path: Path) -> KeyedApp:
    return KeyedApp(tmp_path)
