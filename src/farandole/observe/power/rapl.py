"""Linux RAPL: the energy counters of Intel's and AMD's processors, /sys/class/powercap/intel-rapl:*.

    package-0, package-0-die-1    a processor with caches and memory controllers: cpu
    dram                          the memory of a package, not part of it: memory
    psys                          the whole platform, where the board reports it: node
    core, uncore                  parts of a package: not read
"""

from __future__ import annotations

import errno
from pathlib import Path

from farandole.observe.power.files import FileSensor, read_number, read_text
from farandole.observe.power.meters import Meter, Part, Provenance, Refusal

__all__ = ["RAPL", "find_rapl", "rapl_tdp_w"]

RAPL = "RAPL"
_FOLDER = "sys/class/powercap"
_PARTS: dict[str, Part] = {"package": "cpu", "dram": "memory", "psys": "node"}
_ALLOW = (
    "sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj "
    "(until the next boot; since Linux 5.10 only root may read them)"
)


def find_rapl(root: Path) -> FileSensor | Refusal | None:
    files = [found for zone in _zones(root) if (found := _meter(zone)) is not None]
    if not files:
        return None
    try:
        return FileSensor(RAPL, files)
    except OSError as error:
        locked = error.errno in (errno.EACCES, errno.EPERM)
        reason = "only root may read its counters" if locked else f"{error.filename}: {error.strerror}"
        return Refusal(sensor=RAPL, part="cpu", reason=reason, advice=_ALLOW if locked else "ls -l /sys/class/powercap/*/energy_uj")


def rapl_tdp_w(root: Path) -> float | None:
    """What all packages may draw for long; anyone may read this, also where the counters are locked."""
    packages = [zone for zone in _zones(root) if (read_text(zone / "name") or "").startswith("package-")]
    limits_uw = [read_number(zone / "constraint_0_max_power_uw") or 0 for zone in packages]
    return sum(limits_uw) / 1e6 if limits_uw and all(limits_uw) else None


def _zones(root: Path) -> list[Path]:
    """In the order of their numbers. The same counters may be there a second time through another register (mmio)."""
    for pattern in ("intel-rapl:*", "intel-rapl-mmio:*"):
        zones = list((root / _FOLDER).glob(pattern))
        if zones:
            return sorted(zones, key=lambda zone: [int(word) for word in zone.name.split(":")[1:]])
    return []


def _meter(zone: Path) -> tuple[Meter, Path] | None:
    shown = read_text(zone / "name") or ""
    kind = shown.split("-")[0]
    part = _PARTS.get(kind)
    if part is None:
        return None
    owner = read_text(zone.with_name(zone.name.rpartition(":")[0]) / "name") if part == "memory" else None
    limit_uw = read_number(zone / "constraint_0_power_limit_uw")
    meter = Meter(
        name=f"{shown} of {owner}" if owner else shown,
        part=part,
        sensor=RAPL,
        provenance=Provenance.NODE if part == "node" else Provenance.COMPONENT,
        kind="energy",
        unit=1e-6,
        wraps_at=read_number(zone / "max_energy_range_uj"),
        ceiling_w=limit_uw / 1e6 if limit_uw and (read_text(zone / "enabled") or "1") == "1" else None,
        package=_package(kind, owner or shown),
    )
    return meter, zone / "energy_uj"


def _package(kind: str, name: str) -> str:
    """Dies of one package, and platforms, may all show the counter of the whole."""
    package, _, die = name.partition("-die-")
    return f"{kind} of {package}" if die or kind == "psys" else ""
