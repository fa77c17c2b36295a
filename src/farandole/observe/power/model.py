"""The model for machines without sensors: power = what the part may draw x its utilisation. Never a measurement.

It restates CPU time and memory use in watts: it can't tell whether a change saved energy. All of its figures say
`modelled`, and what they assume.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import SettingsError
from farandole.observe.power.files import ValueFile
from farandole.observe.power.meters import Clocks, Meter, Provenance, Reading
from farandole.observe.power.rapl import rapl_tdp_w

__all__ = ["MODEL", "Assumptions", "ModelSensor", "assumptions", "busy_ticks"]

MODEL = "model"
_CORE_W = 10.0
_GIGABYTE_W = 0.4
_STAT_BYTES = 4096
_MEMORY_BYTES = 256  # MemTotal, MemFree and MemAvailable come first


@dataclass(kw_only=True, slots=True)
class Assumptions:
    """What the parts draw when fully used."""

    cpu_w: float
    cpu_from: str
    """Where that figure comes from, in words."""
    memory_w: float
    memory_from: str

    def __post_init__(self) -> None:
        for name, value in (("FARANDOLE_CPU_TDP_W", self.cpu_w), ("FARANDOLE_MEMORY_W", self.memory_w)):
            if not 0 < value < math.inf:
                raise SettingsError(f"{name}={value:g}: expected watts above 0, e.g. {name}=150")


class ModelSensor:
    """The machine's busy CPU time as a counter of energy, and its used memory as a gauge of power."""

    def __init__(self, root: Path, assumed: Assumptions) -> None:
        self.name = MODEL
        self._stat = ValueFile(root / "proc/stat", most_bytes=_STAT_BYTES)
        self._memory = ValueFile(root / "proc/meminfo", most_bytes=_MEMORY_BYTES)
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._memory_mw = assumed.memory_w * 1e3
        self.meters = [
            Meter(
                name="processors", part="cpu", sensor=MODEL, provenance=Provenance.MODELLED, kind="energy",
                unit=assumed.cpu_w / _cores(root) * tick_s, ceiling_w=assumed.cpu_w,
                note=f"{assumed.cpu_w:g} W ({assumed.cpu_from}) x utilisation of all cores",
            ),
            Meter(
                name="memory", part="memory", sensor=MODEL, provenance=Provenance.MODELLED, kind="power", unit=1e-3,
                note=f"{assumed.memory_w:.3g} W ({assumed.memory_from}) x share in use",
            ),
        ]  # fmt: skip

    def read(self, clock: Clocks) -> list[Reading]:
        monotonic_ns, realtime_ns = clock.monotonic_ns(), clock.realtime_ns()
        try:
            busy, used_mw = busy_ticks(self._stat.read()), round(self._memory_mw * _used_share(self._memory.read()))
        except (OSError, LookupError, ValueError) as error:
            return [Reading(monotonic_ns, realtime_ns, None, str(error))] * 2
        return [Reading(monotonic_ns, realtime_ns, raw) for raw in (busy, used_mw)]

    def close(self) -> None:
        self._stat.close()
        self._memory.close()


def assumptions(root: Path, environment: Mapping[str, str]) -> Assumptions:
    """As FARANDOLE_CPU_TDP_W and FARANDOLE_MEMORY_W say, as RAPL's limits tell, or a guess."""
    cores, gigabytes = _cores(root), _gigabytes(root)
    cpu_w, cpu_from = cores * _CORE_W, f"a guess: {_CORE_W:g} W a core, {cores} cores"
    tdp_w = rapl_tdp_w(root)
    if tdp_w is not None:
        cpu_w, cpu_from = tdp_w, "RAPL's limit"
    memory_w, memory_from = gigabytes * _GIGABYTE_W, f"a guess: {_GIGABYTE_W:g} W a GB, {gigabytes:.0f} GB"
    if environment.get("FARANDOLE_CPU_TDP_W"):
        cpu_w, cpu_from = _watts(environment, "FARANDOLE_CPU_TDP_W"), "FARANDOLE_CPU_TDP_W"
    if environment.get("FARANDOLE_MEMORY_W"):
        memory_w, memory_from = _watts(environment, "FARANDOLE_MEMORY_W"), "FARANDOLE_MEMORY_W"
    return Assumptions(cpu_w=cpu_w, cpu_from=cpu_from, memory_w=memory_w, memory_from=memory_from)


def _watts(environment: Mapping[str, str], name: str) -> float:
    try:
        return float(environment[name])
    except ValueError:
        raise SettingsError(f"{name}={environment[name]!r}: expected watts, e.g. {name}=150") from None


def _cores(root: Path) -> int:
    lines = (root / "proc/stat").read_text().splitlines()
    return max(1, sum(line.startswith("cpu") and line[3:4].isdecimal() for line in lines))


def _gigabytes(root: Path) -> float:
    return int((root / "proc/meminfo").read_text().split()[1]) * 1024 / 1e9


def busy_ticks(text: str) -> int:
    """User, nice, system and interrupts; neither idle nor waiting nor what another guest of the host took."""
    user, nice, system, _, _, irq, softirq = map(int, text.split(maxsplit=8)[1:8])
    return user + nice + system + irq + softirq


def _used_share(text: str) -> float:
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines() if line.endswith("kB")}
    return 1 - kilobytes["MemAvailable"] / kilobytes["MemTotal"]
