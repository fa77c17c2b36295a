"""GPUs through their vendors' Python packages: NVML (nvidia-ml-py) and AMD SMI (amdsmi), where they are installed.

All GPUs of the node are read, also those that CUDA_VISIBLE_DEVICES hides. Where a GPU has no energy counter its
power is sampled instead.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farandole.observe.power.meters import Clocks, Meter, Provenance, Reading, Refusal

__all__ = ["AMD_SMI", "NVML", "find_amdsmi", "find_nvml"]

NVML = "NVML"
AMD_SMI = "AMD SMI"


class GpuSensor:
    """Meters that are functions of a vendor's library, whose errors are all of one kind."""

    def __init__(
        self,
        name: str,
        meters: list[tuple[Meter, Callable[[], int]]],
        *,
        errors: type[Exception],
        shut: Callable[[], object],
    ) -> None:
        self.name = name
        self.meters = [meter for meter, _ in meters]
        self._ask = [ask for _, ask in meters]
        self._errors = (errors, KeyError, TypeError, ValueError)
        self._shut = shut

    def read(self, clock: Clocks) -> list[Reading]:
        return [self._read(ask, clock) for ask in self._ask]

    def close(self) -> None:
        with contextlib.suppress(*self._errors):
            self._shut()

    def _read(self, ask: Callable[[], int], clock: Clocks) -> Reading:
        monotonic_ns, realtime_ns = clock.monotonic_ns(), clock.realtime_ns()
        try:
            return Reading(monotonic_ns, realtime_ns, ask())
        except self._errors as error:
            return Reading(monotonic_ns, realtime_ns, None, str(error) or type(error).__name__)


def find_nvml(root: Path) -> GpuSensor | Refusal | None:
    if importlib.util.find_spec("pynvml") is None:
        if not (root / "proc/driver/nvidia/gpus").exists():
            return None
        return Refusal(
            sensor=NVML, part="gpu", reason="nvidia-ml-py is not installed", advice="pip install 'farandole[gpu]'"
        )
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # the package without a driver, as on most login nodes
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        meters = [_nvidia(nvml, index, handle) for index, handle in enumerate(handles)]
    except nvml.NVMLError as error:
        return Refusal(sensor=NVML, part="gpu", reason=str(error), advice="nvidia-smi -q -d POWER")
    return GpuSensor(NVML, meters, errors=nvml.NVMLError, shut=nvml.nvmlShutdown) if meters else None


def _nvidia(nvml: Any, index: int, handle: Any) -> tuple[Meter, Callable[[], int]]:
    ceiling_w = None
    with contextlib.suppress(nvml.NVMLError):
        ceiling_w = nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
    try:
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:  # older than Volta
        meter = _gpu(NVML, index, "power", 1e-3, ceiling_w)
        return meter, lambda: int(nvml.nvmlDeviceGetPowerUsage(handle))
    meter = _gpu(NVML, index, "energy", 1e-3, ceiling_w)
    return meter, lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def find_amdsmi(root: Path) -> GpuSensor | Refusal | None:
    if importlib.util.find_spec("amdsmi") is None:
        if not (root / "sys/class/kfd").exists():
            return None
        return Refusal(sensor=AMD_SMI, part="gpu", reason="amdsmi is not installed", advice="pip install amdsmi, of ROCm's version")
    try:
        smi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:  # it loads ROCm's library when imported
        return Refusal(sensor=AMD_SMI, part="gpu", reason=str(error), advice="pip install amdsmi, of ROCm's version")
    try:
        smi.amdsmi_init()
        meters = [_amd(smi, index, handle) for index, handle in enumerate(smi.amdsmi_get_processor_handles())]
    except smi.AmdSmiException as error:
        return Refusal(sensor=AMD_SMI, part="gpu", reason=str(error), advice="amd-smi metric --power")
    return GpuSensor(AMD_SMI, meters, errors=smi.AmdSmiException, shut=smi.amdsmi_shut_down) if meters else None


def _amd(smi: Any, index: int, handle: Any) -> tuple[Meter, Callable[[], int]]:
    try:
        told = smi.amdsmi_get_energy_count(handle)
        key = "energy_accumulator" if "energy_accumulator" in told else "power"  # its name before ROCm 6.2
        unit_j = float(told["counter_resolution"]) * 1e-6
        int(told[key])
    except (smi.AmdSmiException, KeyError, TypeError, ValueError):
        return _gpu(AMD_SMI, index, "power", 1.0, None), lambda: _amd_power_w(smi, handle)
    return _gpu(AMD_SMI, index, "energy", unit_j, None), lambda: int(smi.amdsmi_get_energy_count(handle)[key])


def _amd_power_w(smi: Any, handle: Any) -> int:
    """Whichever of the two this GPU has; the other reads "N/A"."""
    told = smi.amdsmi_get_power_info(handle)
    current, average = told.get("current_socket_power"), told["average_socket_power"]
    return int(current) if isinstance(current, int) else int(average)


def _gpu(sensor: str, index: int, kind: Any, unit: float, ceiling_w: float | None) -> Meter:
    return Meter(
        name=f"gpu {index}", part="gpu", sensor=sensor, provenance=Provenance.COMPONENT, kind=kind, unit=unit,
        ceiling_w=ceiling_w,
    )  # fmt: skip
