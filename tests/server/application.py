"""Applications for tests: a real one around any engine, with the parts that a test names."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI
from openfeature.provider import FeatureProvider

from prolepsis.control.audit.log import QueuedEvent
from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.store.store import Store, unrecorded
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.clock import SteadyClock
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server import app
from prolepsis.server.front.keys import Keys
from prolepsis.server.output.pipeline import LoadedPolicy
from prolepsis.server.services import Services
from prolepsis.server.sources import Sources

_Wanted = TypeVar("_Wanted", bound=Feature)


def build(
    config: ServerConfig,
    client: EngineClient,
    tokenizer: Tokenizer,
    metrics: Metrics,
    *,
    keys: Keys | None = None,
    policy: PolicyFile | Path | None = None,
    flags: FlagFile | FeatureProvider | None = None,
    prices: PriceFile | None = None,
    output: Sequence[LoadedPolicy] = (),
    store: Store | None = None,
    base_plan: SpecPlan | None = None,
    clock: Callable[[], float] | None = None,
    others: Sequence[Services] = (),
    settings: EngineConfig | None = None,
) -> FastAPI:
    """Return the application; without a `store` nothing is recorded. `settings`: those of the engine."""
    store = store or unrecorded()
    context = Context(
        config=config,
        engine=settings or EngineConfig(),
        client=client,
        metrics=metrics,
        store=store,
        emit=lambda event: store.writer.offer(QueuedEvent(event)),
        base_plan=base_plan or SpecPlan(),
        clock=clock or SteadyClock(),
    )
    policy = PolicyFile(policy) if isinstance(policy, Path) else policy
    sources = Sources(keys=keys or Keys(None), policy=policy, flags=flags, prices=prices, output=output)
    return app.build(context, tokenizer, sources, others=others)


def feature_of(application: FastAPI, kind: type[_Wanted]) -> _Wanted:
    """Return the application's feature of a class."""
    [found] = [one for one in application.state.features if isinstance(one, kind)]
    return found
