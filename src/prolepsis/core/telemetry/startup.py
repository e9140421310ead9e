"""Metrics of the build that serves, and of the time that its start took."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from prometheus_client import CollectorRegistry

from prolepsis.core.telemetry.declare import counter, gauge, info
from prolepsis.core.telemetry.requests import NONE


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The build that serves; empty: there is none."""

    version: str
    """Version of this software."""
    model: str
    """The target."""
    forward: str
    exactness: str
    draft_head: str
    policy: str
    """Version of the policy in use."""
    region: str


class Startup:
    """Duration of a cold start; a process starts once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "Time from the start until the model was loaded, of compiling in it, and until the engine was ready"
        self._seconds = gauge(registry, "startup_seconds", text, "stage")
        self._compiled = counter(registry, "compilations", "Native libraries that were compiled")
        text = "Requests that ended before the engine was ready"
        self.cold_requests = counter(registry, "cold_requests", text)

    def loaded(self, seconds: float, compilations: Sequence[float]) -> None:
        """Process how long loading took, and each compilation in it."""
        self._seconds.labels("load").set(seconds)
        self._seconds.labels("compile").set(sum(compilations))
        self._compiled.inc(len(compilations))

    def ready(self, seconds: float) -> None:
        """Process how long after loading the engine was ready."""
        self._seconds.labels("prepare").set(seconds)


class Build:
    """`prolepsis_build_info`; other series are joined with it by instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._info = info(registry, "build", "What this process serves", tuple(BuildInfo.__dataclass_fields__))

    def show(self, build: BuildInfo) -> None:
        """Show what serves from now on, and no other."""
        self._info.info({name: value or NONE for name, value in asdict(build).items()})
