"""Which sensors this node has: each part of it is measured by the best one, and modelled only where there is none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from farandole.errors import SettingsError
from farandole.observe.power.cray import find_cray
from farandole.observe.power.gpus import find_amdsmi, find_nvml
from farandole.observe.power.hwmon import find_amd
from farandole.observe.power.meters import Meter, Refusal, Sensor
from farandole.observe.power.model import ModelSensor, assumptions
from farandole.observe.power.rapl import find_rapl

__all__ = ["Found", "find_sensors", "root_from_environment"]

# From the best: what comes first measures a part, what else shows the same part is left alone.
_FINDERS: tuple[Callable[[Path], Sensor | Refusal | None], ...] = (
    find_cray,
    find_rapl,
    find_amd,
    find_nvml,
    find_amdsmi,
)


@dataclass(kw_only=True, slots=True)
class Found:
    """Open sensors, and those that could not be opened."""

    sensors: list[Sensor] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def meters(self) -> Sequence[Meter]:
        return [meter for sensor in self.sensors for meter in sensor.meters]

    @property
    def modelled(self) -> bool:
        return any(not meter.measured for meter in self.meters)

    def close(self) -> None:
        while self.sensors:
            self.sensors.pop().close()


def find_sensors(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Found:
    """Look below `root` for /sys and /proc, and for the GPUs' libraries. The caller closes what is found."""
    found = Found()
    for find in _FINDERS:
        sensor = find(root)
        if isinstance(sensor, Refusal):
            found.refusals.append(sensor)
        elif sensor is not None:
            _keep(found, sensor)
    covered = {meter.part for meter in found.meters}
    found.refusals = [refusal for refusal in found.refusals if refusal.part not in covered]
    if not {"node", "cpu"} & covered and (root / "proc/stat").exists():
        found.sensors.append(ModelSensor(root, assumptions(root, environment)))
    return found


def root_from_environment() -> Path:
    """FARANDOLE_POWER_ROOT: where a container has the host's /sys and /proc."""
    root = Path(os.environ.get("FARANDOLE_POWER_ROOT") or "/")
    if not root.is_dir():
        raise SettingsError(
            f"FARANDOLE_POWER_ROOT={root} is no folder: expected one that holds the host's sys and proc, e.g. /host"
        )
    return root


def _keep(found: Found, sensor: Sensor) -> None:
    """GPUs of two vendors are different ones; everything else is there once."""
    covered = {meter.part for meter in found.meters if meter.part != "gpu" or "Cray" in meter.sensor}
    if all(meter.part in covered for meter in sensor.meters):
        sensor.close()
    else:
        found.sensors.append(sensor)
