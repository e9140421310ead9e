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
        self._root, self._num_kills = root, 0
        for name, text in (_KILLS, _THROTTLED):
            declared(registry, MetricFamily(f"{name}_total", "counter", text))
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        num_kills, waited_us = self._value("memory.events", "oom_kill"), self._value("cpu.stat", "throttled_usec")
        if num_kills is not None and num_kills > self._num_kills:
            log.warning("killed_for_memory", processes=num_kills - self._num_kills)
            self._num_kills = num_kills
        yield CounterMetricFamily(*_KILLS, value=num_kills)
        yield CounterMetricFamily(*_THROTTLED, value=None if waited_us is None else waited_us / 1e6)

    def _value(self, file: str, key: str) -> int | None:
        try:
            own = (self._root / "proc/self/cgroup").read_text().splitlines()
            [path] = [line.removeprefix("0::/") for line in own if line.startswith("0::")]
            lines = (self._root / "sys/fs/cgroup" / path / file).read_text().splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith(f"{key} ")), None)
        except (OSError, ValueError):
            return None
