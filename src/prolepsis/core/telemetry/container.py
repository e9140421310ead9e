"""What the limits of a container did to this process and those beside it, read when they are scraped."""

from collections.abc import Iterable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from prolepsis.core.telemetry.declare import PREFIX, declared
from prolepsis.core.telemetry.labels import MetricFamily

log = structlog.get_logger(__name__)
_KILLS = PREFIX + "memory_kills", "Processes of the server's container that the kernel killed for its limit of memory"
_THROTTLED = PREFIX + "cpu_throttled_seconds", "Time of threads that waited for the container's limit of CPU, summed"


class ContainerCollector(Collector):
    """Counters of this process's cgroup (version 2); none where it has none. Kills are logged as they are seen."""

    def __init__(self, registry: CollectorRegistry, root: Path = Path("/")) -> None:
        self._root, self._num_kills = root, 0.0
        for name, text in (_KILLS, _THROTTLED):
            declared(registry, MetricFamily(f"{name}_total", "counter", text))
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        kills, throttled = self.describe()
        for family, file, key, unit in (
            (kills, "memory.events", "oom_kill", 1.0),
            (throttled, "cpu.stat", "throttled_usec", 1e-6),
        ):
            if (value := self._value(file, key)) is not None:
                family.add_metric([], value * unit)
                if family is kills and value > self._num_kills:
                    log.warning("killed_for_memory", processes=value - self._num_kills)
                    self._num_kills = value
        return kills, throttled

    def describe(self) -> tuple[CounterMetricFamily, CounterMetricFamily]:
        return CounterMetricFamily(*_KILLS, labels=[]), CounterMetricFamily(*_THROTTLED, labels=[])

    def _value(self, file: str, key: str) -> int | None:
        try:
            own = (self._root / "proc/self/cgroup").read_text().splitlines()
            [path] = [line.removeprefix("0::/") for line in own if line.startswith("0::")]
            lines = (self._root / "sys/fs/cgroup" / path / file).read_text().splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), None)
        except (OSError, ValueError):
            return None
