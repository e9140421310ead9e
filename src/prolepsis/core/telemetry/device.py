"""Memory, utilisation, power and temperature of GPUs, read when they are scraped."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prolepsis.core.telemetry.declare import PREFIX, declared
from prolepsis.core.telemetry.labels import MetricFamily

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Present readings of one GPU."""

    device: str  # its number, as the driver counts
    used_bytes: int
    total_bytes: int
    busy: float  # share of the last sampling period in which a kernel ran, 0 to 1
    watts: float
    celsius: float
    is_throttled: bool  # power, heat or a fault of its supply lowers its clock


class Devices(Protocol):
    """The GPUs of this machine."""

    def read(self) -> Iterable[DeviceReading]:
        """Return what each says; raises `OSError` where they cannot be read."""


_SHOWN: tuple[tuple[str, str, Callable[[DeviceReading], float]], ...] = (
    ("device_memory_used_bytes", "Memory of the GPU in use, by all processes", lambda gpu: gpu.used_bytes),
    ("device_memory_size_bytes", "Memory of the GPU", lambda gpu: gpu.total_bytes),
    ("device_utilization_ratio", "Share of time in which a kernel runs, 0 to 1", lambda gpu: gpu.busy),
    ("device_power_watts", "Power that the GPU draws", lambda gpu: gpu.watts),
    ("device_temperature_celsius", "Temperature of the GPU", lambda gpu: gpu.celsius),
    ("device_throttled", "1 while power or heat lowers the GPU's clock", lambda gpu: float(gpu.is_throttled)),
)


class DeviceCollector(Collector):
    """Series of the GPUs; a GPU that fails has none until it can be read again."""

    def __init__(self, registry: CollectorRegistry, devices: Devices) -> None:
        self._devices = devices
        for name, text, _ in _SHOWN:
            declared(registry, MetricFamily(PREFIX + name, "gauge", text, ("device",)))
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        try:
            readings = list(self._devices.read())
        except OSError as error:
            log.warning("devices_not_read", error=str(error))
            readings = []
        for name, text, shown in _SHOWN:
            family = GaugeMetricFamily(PREFIX + name, text, labels=["device"])
            for reading in readings:
                family.add_metric([reading.device], shown(reading))
            yield family

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(PREFIX + name, text, labels=["device"]) for name, text, _ in _SHOWN]
