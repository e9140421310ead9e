"""Series of GPUs."""

import pynvml
import pytest

from prolepsis.core.telemetry.declare import MetricsRegistry
from prolepsis.core.telemetry.device import DeviceCollector
from prolepsis.core.telemetry.nvidia import NvidiaDevices
from tests.core.telemetry.servers import FakeDevices


def test_each_gpu_shows_its_memory_use_and_heat() -> None:
    registry = MetricsRegistry()
    DeviceCollector(registry, FakeDevices())
    shown = {
        (family.name, sample.labels["device"]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert shown["prolepsis_device_memory_used_bytes", "0"] == 2**30
    assert shown["prolepsis_device_memory_size_bytes", "1"] == 2**36
    assert shown["prolepsis_device_utilization_ratio", "0"] == 0.5
    assert shown["prolepsis_device_power_watts", "1"] == 690.0
    assert [shown["prolepsis_device_throttled", device] for device in "01"] == [0.0, 1.0]


def test_gpus_that_cannot_be_read_leave_the_other_series_alone() -> None:
    registry, devices = MetricsRegistry(), FakeDevices()
    DeviceCollector(registry, devices)
    devices.error = OSError("the driver was reset")
    assert [family.samples for family in registry.collect()] == [[]] * 6


def test_a_machine_without_the_drivers_library_has_no_devices() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with pytest.raises(OSError, match="NVML"):
            NvidiaDevices()
    else:
        assert all(0 < one.used_bytes < one.total_bytes for one in NvidiaDevices().read())
