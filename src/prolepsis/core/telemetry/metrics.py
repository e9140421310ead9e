"""Prometheus metrics of one engine and its HTTP side, in a registry of their own: two engines never share a counter.

Names follow what vLLM and llama.cpp have in common, with an underscore in place of their colon. Ratios are left to
queries: acceptance rate = accepted / draft tokens, acceptance length = 1 + accepted / drafts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import structlog
from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from prolepsis.core.extras import GPU
from prolepsis.core.figures import FaultCount, Figure, RequestDone, StepDone
from prolepsis.core.messages import LearnedAcceptance
from prolepsis.core.rounds import RemoteRounds
from prolepsis.core.stats import AcceptanceState
from prolepsis.core.telemetry.container import ContainerCollector
from prolepsis.core.telemetry.declare import LabelUse, MetricsRegistry, counter, info
from prolepsis.core.telemetry.device import DeviceCollector
from prolepsis.core.telemetry.engine import EngineLoad, Startup, TokenCounts
from prolepsis.core.telemetry.requests import NONE, RequestMetrics
from prolepsis.core.telemetry.spec_decode import RemoteMetrics, SpecDecodeCounters
from prolepsis.core.telemetry.vllm_names import under_vllm_names

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """The build that serves: labels of `prolepsis_build_info`, with which other series are joined. Empty: none."""

    version: str  # version of this software
    model: str  # the target
    forward: str
    exactness: str
    draft_head: str
    policy: str  # version of the policy in use
    region: str


class Metrics:
    """Metrics that an engine reports from its thread and the server from its event loop; any thread may scrape them."""

    def __init__(self, tenants: Sequence[str] = ()) -> None:
        """`tenants` have series of their own."""
        self.registry = MetricsRegistry(tenants)
        self.requests = RequestMetrics(self.registry)
        self.spec_decode = SpecDecodeCounters(self.registry)
        self.learned: dict[tuple[str, str], AcceptanceState] = {}
        """What engines learned last of the drafts of a proposer with some weights: no metric, but reported alike."""
        self.startup = Startup(self.registry)
        self._tokens = TokenCounts(self.registry)
        self._engine = EngineLoad(self.registry)
        self._remote = RemoteMetrics(self.registry)
        text = "HTTP responses by route and status; a stream that fails once it has begun has 200"
        self.http_requests = counter(self.registry, "http_requests", text, "route", "status", most=300)
        """`route` is the route's pattern, never the path as given."""
        self._build = info(self.registry, "build", "What this process serves", tuple(BuildInfo.__dataclass_fields__))
        LabelUse(self.registry)
        ProcessCollector(registry=self.registry)
        ContainerCollector(self.registry)
        _show_devices(self.registry)

    def describe(self, build: BuildInfo) -> None:
        """Say what serves from now on."""
        self._build.info({name: value or NONE for name, value in asdict(build).items()})

    def observe(self, figure: Figure) -> None:
        """Count what an engine reports of its steps, requests and faults; a replay is no request."""
        match figure:
            case StepDone(seconds, num_tokens):
                self._engine.step_done(seconds, num_tokens)
            case RequestDone(stats) if stats.mode.reason == "replay":
                self._tokens.replayed.inc(stats.num_output_tokens)
            case RequestDone(stats):
                self._tokens.count(stats)
                self.spec_decode.count(stats)
            case LearnedAcceptance(proposer, weights, state):
                self.learned[proposer, weights] = state
            case RemoteRounds():
                self._remote.count(figure)
            case FaultCount("proposer", name, number):
                self.spec_decode.failures.labels(name).inc(number)
            case FaultCount("contained", name, number):
                self._engine.contained_faults.labels(name).inc(number)
            case FaultCount("grammar", _, number):
                self._engine.grammar_failures.inc(number)
            case FaultCount("not_finite", _, number):
                self._engine.not_finite_failures.inc(number)

    def set_load(self, num_running: int, num_waiting: int, kv_usage: float, *, ready: bool) -> None:
        """Set the gauges; `kv_usage`: share of KV pages in use, 0 to 1, `ready`: whether the engine takes steps."""
        self._engine.ready.set(ready)
        self._engine.running.set(num_running)
        self._engine.waiting.set(num_waiting)
        self._engine.kv_usage.set(kv_usage)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return self.exposition_for("")[0]

    def exposition_for(self, accept: str, *, vllm_model: str | None = None) -> tuple[bytes, str]:
        """Return everything, and its content type, in the format that a header `Accept` asks for.

        Exemplars are in OpenMetrics only. `vllm_model`: what vLLM has too is there under its names as well, for a model
        of this name.
        """
        families = list(self.registry.collect())
        if vllm_model is not None:
            families += under_vllm_names(families, vllm_model)
        encode, content_type = choose_encoder(accept)
        return encode(_Collected(families)), content_type


@dataclass(frozen=True, slots=True)
class _Collected(Collector):
    """Families that were collected already."""

    families: Sequence[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families


def _show_devices(registry: MetricsRegistry) -> None:
    """Show this machine's GPUs if what reads them is here; a machine without one has no such series."""
    if not GPU.is_installed:
        log.debug("no_devices", reason=f"{GPU.package} is not installed: {GPU.install}")
        return
    from prolepsis.core.telemetry.nvidia import NvidiaDevices

    try:
        DeviceCollector(registry, NvidiaDevices())
    except OSError as error:
        log.debug("no_devices", reason=str(error))
