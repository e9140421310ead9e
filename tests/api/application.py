"""Applications for tests: a real one around any engine, with the parts that a test names."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI
from openfeature.provider import FeatureProvider

from prolepsis.api import app
from prolepsis.api.auth.keys import Keys
from prolepsis.api.output.pipeline import LoadedPolicy
from prolepsis.api.services import Services
from prolepsis.api.sources import Sources
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.audit.log import AuditLog
from prolepsis.controls.flag_file import FlagFile
from prolepsis.core.clock import SteadyClock
from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.cost.prices import PriceFile
from prolepsis.engine.client import EngineClient
from prolepsis.policy.source import PolicyFile
from prolepsis.store.store import Store, unrecorded
from prolepsis.telemetry.metrics import Metrics
from prolepsis.web.context import Context
from prolepsis.web.feature import Feature

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
) -> FastAPI:
    """Return the application; without a `store` nothing is recorded."""
    store = store or unrecorded()
    context = Context(
        config=config,
        client=client,
        metrics=metrics,
        store=store,
        emit=AuditLog(store.writer).record,
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
