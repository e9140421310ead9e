"""What the features of a server are built from, made once."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from prolepsis.control.store.database import Database
from prolepsis.control.store.store import Store
from prolepsis.control.web.skipped import Skipped
from prolepsis.core.audit_event import Emit
from prolepsis.core.clock import SteadyClock
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.plan import SpecPlan
from prolepsis.core.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every feature may use. What one feature needs of another is a further argument."""

    config: ServerConfig
    engine: EngineConfig = field(default_factory=EngineConfig)  # settings of the engine that `client` reaches
    client: EngineClient
    metrics: Metrics
    store: Store
    emit: Emit  # takes events for the audit log
    base_plan: SpecPlan = field(default_factory=SpecPlan)
    """The engine's plan at the lowest level of load shedding, before controls and health change it."""
    clock: Callable[[], float] = field(default_factory=SteadyClock)
    """Unix time, for what must not follow a clock that is set."""
    monotonic: Callable[[], float] = time.monotonic  # for times between two moments of this process
    skipped: Skipped = field(default_factory=Skipped)
    wall: Callable[[], float] = time.time
    """Unix time by the system's clock: for what commands, other machines and people compare with theirs."""

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    @property
    def database(self) -> Database:
        return self.store.database
