"""GPUs through NVIDIA's driver library."""

from collections.abc import Iterable

import pynvml

from prolepsis.core.telemetry.device import DeviceReading


class NvidiaDevices:
    """The GPUs of the driver; raises `OSError` where its library is missing."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error

    def read(self) -> Iterable[DeviceReading]:
        try:
            return [_read(number) for number in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error


_THROTTLED = (
    pynvml.nvmlClocksEventReasonSwPowerCap
    | pynvml.nvmlClocksEventReasonHwSlowdown
    | pynvml.nvmlClocksEventReasonSwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
)


def _read(number: int) -> DeviceReading:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return DeviceReading(
        device=str(number),
        used_bytes=int(memory.used),
        total_bytes=int(memory.total),
        busy=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0,
        watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
        celsius=float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        is_throttled=bool(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _THROTTLED),
    )
