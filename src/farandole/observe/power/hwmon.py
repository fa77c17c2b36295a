"""AMD's processors through hwmon: amd_energy (a counter for each socket) and amd_hsmp_hwmon (a gauge for each)."""

from __future__ import annotations

import errno
from pathlib import Path

from farandole.observe.power.files import FileSensor, read_number, read_text
from farandole.observe.power.meters import Meter, Provenance, Refusal

__all__ = ["AMD_ENERGY", "AMD_HSMP", "find_amd"]

AMD_ENERGY = "AMD energy"
AMD_HSMP = "AMD HSMP"
_FOLDER = "sys/class/hwmon"


def find_amd(root: Path) -> FileSensor | Refusal | None:
    chips = sorted((root / _FOLDER).glob("hwmon*"), key=lambda chip: (len(chip.name), chip.name))
    names = {chip: read_text(chip / "name") for chip in chips}
    counters = [file for chip in chips if names[chip] == "amd_energy" for file in _counters(chip)]
    gauges = [_gauge(chip, number) for number, chip in enumerate(c for c in chips if names[c] == "amd_hsmp_hwmon")]
    if counters:
        return _opened(AMD_ENERGY, counters, "/sys/class/hwmon/hwmon*/energy*_input")
    if gauges:
        return _opened(AMD_HSMP, gauges, "/sys/class/hwmon/hwmon*/power1_input")
    return None


def _opened(sensor: str, files: list[tuple[Meter, Path]], pattern: str) -> FileSensor | Refusal:
    try:
        return FileSensor(sensor, files)
    except OSError as error:
        locked = error.errno in (errno.EACCES, errno.EPERM)
        reason = "only root may read it" if locked else f"{error.filename}: {error.strerror}"
        return Refusal(sensor=sensor, part="cpu", reason=reason, advice=f"sudo chmod a+r {pattern}" if locked else f"ls -l {pattern}")


def _counters(chip: Path) -> list[tuple[Meter, Path]]:
    """The sockets; the cores (`Ecore000`, ...) are parts of them. The driver extends the counters to 64 bits."""
    found = []
    for label in sorted(chip.glob("energy*_label"), key=lambda path: (len(path.name), path.name)):
        shown = read_text(label) or ""
        if shown.startswith("Esocket"):
            meter = Meter(
                name=shown.replace("Esocket", "socket "), part="cpu", sensor=AMD_ENERGY,
                provenance=Provenance.COMPONENT, kind="energy", unit=1e-6,
            )  # fmt: skip
            found.append((meter, label.with_name(label.name.replace("_label", "_input"))))
    return found


def _gauge(chip: Path, number: int) -> tuple[Meter, Path]:
    cap_uw = read_number(chip / "power1_cap")
    meter = Meter(
        name=f"socket {number}", part="cpu", sensor=AMD_HSMP, provenance=Provenance.COMPONENT, kind="power", unit=1e-6,
        ceiling_w=cap_uw / 1e6 if cap_uw else None,
    )  # fmt: skip
    return meter, chip / "power1_input"
