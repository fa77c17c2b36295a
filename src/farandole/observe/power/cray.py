"""Cray and HPE Cray EX: /sys/cray/pm_counters, which the board fills ten times a second.

A file reads `27725 J 1571230862955436 us`: a value, its unit, and when the board took it, on the calendar's clock.
`energy` is the node with its accelerators; the others are parts of it.
"""

from __future__ import annotations

from pathlib import Path

from farandole.observe.power.files import FileSensor, read_text
from farandole.observe.power.meters import Meter, Part, Provenance, Refusal

__all__ = ["CRAY", "find_cray"]

CRAY = "Cray pm_counters"
_FOLDER = "sys/cray/pm_counters"


def find_cray(root: Path) -> FileSensor | Refusal | None:
    folder = root / _FOLDER
    if not (folder / "energy").exists():
        return None
    files = [
        (_meter(folder, "energy", "node", "node"), folder / "energy"),
        *[
            (_meter(folder, f"{part}_energy", part, part), folder / f"{part}_energy")
            for part in _present(folder)
        ],
        *[(_meter(folder, path.name, path.name.removesuffix("_energy"), "gpu"), path) for path in _accelerators(folder)],
    ]
    try:
        return FileSensor(CRAY, files, _value)
    except OSError as error:
        return Refusal(sensor=CRAY, part="node", reason=f"{error.filename}: {error.strerror}", advice=f"ls -l /{_FOLDER}")


def _present(folder: Path) -> list[Part]:
    parts: tuple[Part, ...] = ("cpu", "memory")
    return [part for part in parts if (folder / f"{part}_energy").exists()]


def _accelerators(folder: Path) -> list[Path]:
    """One file each where there are such; else their sum, which stays 0 on nodes without any."""
    each = sorted(folder.glob("accel[0-9]*_energy"))
    if each:
        return each
    together = folder / "accel_energy"
    return [together] if (read_text(together) or "0").split()[0] != "0" else []


def _meter(folder: Path, file: str, name: str, part: Part) -> Meter:
    cap = (read_text(folder / file.replace("energy", "power_cap")) or "0").split()[0]
    return Meter(
        name=name, part=part, sensor=CRAY, kind="energy", unit=1.0,
        provenance=Provenance.NODE if part == "node" else Provenance.COMPONENT,
        ceiling_w=float(cap) if cap.isdecimal() and cap != "0" else None,
    )  # fmt: skip


def _value(text: str) -> tuple[int, int | None]:
    words = text.split()
    if len(words) < 2 or words[1] != "J":
        raise ValueError(text)
    stamped = len(words) >= 4 and words[3] == "us"
    return int(words[0]), int(words[2]) * 1000 if stamped else None
