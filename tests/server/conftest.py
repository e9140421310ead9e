import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import openai
import pytest
import uvicorn

from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.store.store import Store
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.protocol import GatewayProtocol, gateway_protocol
from prolepsis.server.output.pipeline import LoadedPolicy
from prolepsis.server.run import bind
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server_thread import running
from tests.world.site import Site


@dataclass
class Served:
    """A real uvicorn around a fake engine."""

    url: str
    engine: FakeEngine
    metrics: Metrics
    clients: list[openai.OpenAI] = field(default_factory=list)

    def openai(self) -> openai.OpenAI:
        self.clients.append(openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0))
        return self.clients[-1]


def steady(config: ServerConfig | None = None) -> ServerConfig:
    """Return a configuration under which the engine gets clients' requests only: replays are drawn by chance."""
    config = config or ServerConfig(max_body_bytes=65536, limits=LimitTerms(start_drafts=0))
    return config if "replay_sample" in config.model_fields_set else config.model_copy(update={"replay_sample": 0.0})


@contextmanager
def served(
    engine: FakeEngine,
    config: ServerConfig | None = None,
    tokenizer: ByteTokenizer | None = None,
    policy: PolicyFile | None = None,
    *,
    store: Store | None = None,
    prices: PriceFile | None = None,
    output: Sequence[LoadedPolicy] = (),
    keys: Keys | None = None,
    linger_s: float = GatewayProtocol.linger_s,
) -> Iterator[Served]:
    metrics, config = Metrics(), steady(config)
    app = build(
        config,
        engine,
        tokenizer or ByteTokenizer(),
        metrics,
        keys=keys,
        policy=policy,
        store=store,
        prices=prices,
        output=output,
    )
    protocol = gateway_protocol(config, app.state.admission.metrics)
    protocol.linger_s = linger_s
    listener = bind(ServerConfig(port=0))
    made = Served(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, metrics)
    with running(uvicorn.Config(app, log_config=None, lifespan="on", http=protocol), listener):
        try:
            yield made
        finally:
            for client in made.clients:
                client.close()


@pytest.fixture(autouse=True)
def few_logs() -> None:
    configure_logs("error")


@pytest.fixture
def lines() -> Callable[[], list[dict[str, object]]]:
    """Return what reads the log lines since the test began, of level info and above."""
    out = io.StringIO()
    configure_logs("info", as_json=True, stream=out)
    return lambda: [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """One server for tests that leave no trace in it."""
    with served(FakeEngine()) as running:
        yield running


@pytest.fixture
def client() -> Callable[[FakeEngine], httpx2.AsyncClient]:
    """Call the application without a network: one client per engine."""
    return lambda engine: Site(engine, steady()).http
