"""The NVIDIA GPUs of this machine, through NVML (`pip install rl-insight[nvml]`)."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from rl_insight.backoff import Backoff
from rl_insight.hardware.base import Reading, Source
from rl_insight.recorder.ids import host_name

logger = logging.getLogger("rl_insight")

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 120.0
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS = 0xFFFFFFFF
_DRIVER_GONE = frozenset({1, 9, 12, 18})
"""Error codes after which NVML has to be initialized again: not initialized, driver not loaded, library not found,
library and driver of different versions."""


class _DriverGone(Exception):  # noqa: N818  # an event that `read` handles, not an error
    """NVML no longer responds."""


class NvmlSource(Source):
    """Utilization, memory, power, temperature, clock, PCIe, NVLink and energy of each GPU, and memory by process.

    For a GPU split into MIG slices, the chip is reported as a GPU, and each slice with its own memory.
    If the driver is unloaded, NVML is initialized again, with growing pauses between attempts.

    Args:
        pcie: Also read the PCIe traffic, which NVML measures for 20 ms in each direction while the thread sleeps.
    """

    name = "nvml"

    def __init__(self, *, pcie: bool = True) -> None:
        self._pcie = pcie
        self._nvml: Any = None
        self._devices: list[_NvmlGpu] = []
        self._backoff = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S)
        self._retry_at = 0.0

    def is_available(self) -> bool:
        """Return whether NVML is usable and finds a GPU."""
        try:
            self._open()
        except ImportError:
            if os.path.exists("/dev/nvidia0"):  # noqa: PTH110  # a device file, checked once
                logger.warning(
                    "this machine has NVIDIA GPUs, but they are not monitored: nvidia-ml-py is missing. "
                    "Run `pip install rl-insight[nvml]`."
                )
            return False
        except Exception as error:  # noqa: BLE001  # no driver, no library, no permission
            logger.debug("NVML cannot be used: %r.", error)
        if not self._devices:
            self.close()
        return bool(self._devices)

    def read(self, stop: threading.Event) -> list[Reading]:
        """Read every GPU; return nothing while the driver is unavailable."""
        if self._nvml is None and time.monotonic() < self._retry_at:
            return []
        try:
            self._open()
            readings: list[Reading] = []
            for device in self._devices:
                if stop.is_set():
                    break
                readings.extend(device.read(pcie=self._pcie))
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001  # pynvml's errors, and those of a library that changed under it
            self._driver_lost(error)
            return []
        self._backoff.reset()
        return readings

    def close(self) -> None:
        """Release NVML."""
        nvml, self._nvml, self._devices = self._nvml, None, []
        if nvml is None:
            return
        try:
            nvml.nvmlShutdown()
        except Exception as error:  # noqa: BLE001  # the driver may be gone
            logger.debug("NVML did not shut down: %r.", error)

    def _open(self) -> None:
        if self._nvml is not None:
            return
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        self._nvml = nvml
        host = host_name()
        for number in range(nvml.nvmlDeviceGetCount()):
            try:
                self._devices.append(_NvmlGpu(nvml, number, host))
            except nvml.NVMLError as error:
                logger.warning("GPU %d is not monitored: %s.", number, error)

    def _driver_lost(self, error: Exception) -> None:
        pause_s = self._backoff.next_s()
        logger.warning("the NVIDIA driver is unavailable: %s. Next attempt in %.0f s.", error, pause_s)
        self.close()
        self._retry_at = time.monotonic() + pause_s


class _NvmlGpu:
    """One GPU."""

    def __init__(self, nvml: Any, number: int, host: str) -> None:
        self._nvml = nvml
        self._host = host
        self._number = number
        self._handle = nvml.nvmlDeviceGetHandleByIndex(number)
        self._uuid = _text(self._call(nvml.nvmlDeviceGetUUID, self._handle))
        self._model = _text(self._call(nvml.nvmlDeviceGetName, self._handle))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call NVML; None if this GPU does not support the call.

        Raises:
            _DriverGone: NVML has to be initialized again.
        """
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) in _DRIVER_GONE:
                raise _DriverGone(str(error)) from error
            return None

    def read(self, *, pcie: bool) -> list[Reading]:
        """Return the readings of the GPU, its slices and its processes."""
        values = self._chip_values(pcie=pcie) | self._nvlink()
        readings = [self._reading(str(self._number), self._uuid, values)] if values else []
        readings.extend(self._slices())
        for pid, used in self._processes().items():
            readings.append(
                Reading(
                    node=self._host,
                    host=self._host,
                    kind="gpu_process",
                    index=str(self._number),
                    pid=pid,
                    values={"memory_used_bytes": used},
                )
            )
        return readings

    def _chip_values(self, *, pcie: bool) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        values: dict[str, float] = {}
        rates = self._call(nvml.nvmlDeviceGetUtilizationRates, handle)
        if rates is not None:
            values["utilization_ratio"] = rates.gpu / 100
            values["memory_busy_ratio"] = rates.memory / 100
        memory = self._call(_memory_info, nvml, handle)
        if memory is not None:
            values["memory_used_bytes"] = float(memory.used)
            values["memory_total_bytes"] = float(memory.total)
        calls: list[tuple[Any, ...]] = [
            ("power_watts", 0.001, nvml.nvmlDeviceGetPowerUsage),
            ("power_limit_watts", 0.001, nvml.nvmlDeviceGetEnforcedPowerLimit),
            ("temperature_celsius", 1.0, nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            ("sm_clock_hertz", 1e6, nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            ("energy_joules", 0.001, nvml.nvmlDeviceGetTotalEnergyConsumption),
        ]
        if pcie:
            traffic = nvml.nvmlDeviceGetPcieThroughput
            calls.append(("pcie_sent_bytes_per_second", 1024.0, traffic, nvml.NVML_PCIE_UTIL_TX_BYTES))
            calls.append(("pcie_received_bytes_per_second", 1024.0, traffic, nvml.NVML_PCIE_UTIL_RX_BYTES))
        for name, factor, function, *arguments in calls:
            value = self._call(function, handle, *arguments)
            if value is not None:
                values[name] = value * factor
        return values

    def _nvlink(self) -> dict[str, float]:
        fields = [(_NVLINK_SENT, _ALL_LINKS), (_NVLINK_RECEIVED, _ALL_LINKS)]
        found = self._call(self._nvml.nvmlDeviceGetFieldValues, self._handle, fields)
        values = {}
        for name, field in zip(("nvlink_sent_bytes", "nvlink_received_bytes"), found or (), strict=False):
            if field.nvmlReturn == 0:
                values[name] = field.value.ullVal * 1024.0
        return values

    def _slices(self) -> list[Reading]:
        nvml = self._nvml
        mode = self._call(nvml.nvmlDeviceGetMigMode, self._handle)
        if mode is None or mode[0] != 1:
            return []
        readings = []
        for number in range(self._call(nvml.nvmlDeviceGetMaxMigDeviceCount, self._handle) or 0):
            handle = self._call(nvml.nvmlDeviceGetMigDeviceHandleByIndex, self._handle, number)
            memory = None if handle is None else self._call(_memory_info, nvml, handle)
            if memory is None:
                continue
            uuid = _text(self._call(nvml.nvmlDeviceGetUUID, handle))
            values = {"memory_used_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}
            readings.append(self._reading(f"{self._number}:{number}", uuid, values))
        return readings

    def _processes(self) -> dict[int, float]:
        """Return the memory of each process; NVML lists one that uses both compute and graphics twice."""
        nvml, used = self._nvml, dict[int, float]()
        for list_processes in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in self._call(list_processes, self._handle) or ():
                if process.usedGpuMemory is not None:
                    used[process.pid] = max(used.get(process.pid, 0.0), float(process.usedGpuMemory))
        return used

    def _reading(self, index: str, uuid: str, values: dict[str, float]) -> Reading:
        return Reading(
            node=self._host, host=self._host, kind="gpu", index=index, uuid=uuid, model=self._model, values=values
        )


def _memory_info(nvml: Any, handle: Any) -> Any:
    """Return used and total memory as `nvidia-smi` counts them: without the memory reserved by the driver."""
    version = getattr(nvml, "nvmlMemory_v2", None)
    try:
        return (
            nvml.nvmlDeviceGetMemoryInfo(handle, version=version) if version else nvml.nvmlDeviceGetMemoryInfo(handle)
        )
    except TypeError:  # an older pynvml
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if version and getattr(error, "value", None) in (3, 13, 25):  # an older driver without the second form
            return nvml.nvmlDeviceGetMemoryInfo(handle)
        raise


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
