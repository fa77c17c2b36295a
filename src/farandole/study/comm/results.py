"""What `farandole bench comm` leaves: figures, fits and what they were measured on, as one JSON document.

docs/communication.md describes it; SCHEMA changes when a reader of the old one would misread the new one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from farandole.errors import FarandoleError, SettingsError
from farandole.study.comm.fit import fit
from farandole.study.comm.turns import Timing

__all__ = ["KIND", "SCHEMA", "bus_factor", "check_writable", "figures", "fits", "write"]

KIND = "farandole bench comm"
SCHEMA = 1

Row = dict[str, Any]


def bus_factor(collective: str, ranks: int) -> float:
    """How many times its bytes a collective at least moves in and out of every rank, as nccl-tests count it."""
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "broadcast": 1.0, "allgather": share, "reducescatter": share}[collective]


def figures(collective: str, nbytes: int, ranks: int, way: str, timing: Timing) -> Row:
    seconds = np.asarray(timing.seconds)
    median_s = float(np.median(seconds))
    return {
        "collective": collective,
        "way": way,
        "bytes": nbytes,
        "median_s": median_s,
        "min_s": float(seconds.min()),
        "p95_s": float(np.quantile(seconds, 0.95)),
        "turns": seconds.size,
        "calls_per_turn": timing.calls,
        "algorithm_bytes_per_s": nbytes / median_s,
        "bus_bytes_per_s": nbytes / median_s * bus_factor(collective, ranks),
    }


def fits(rows: Sequence[Row], cuts: dict[tuple[str, str], list[float]]) -> list[Row]:
    """alpha and beta of each collective's ways; `cuts` by (collective, way)."""
    found = []
    for collective, way in dict.fromkeys((row["collective"], row["way"]) for row in rows):
        points = [row for row in rows if (row["collective"], row["way"]) == (collective, way)]
        sizes, seconds = [row["bytes"] for row in points], [row["median_s"] for row in points]
        pieces = fit(sizes, seconds, cuts.get((collective, way), []))
        found.append({"collective": collective, "way": way, "pieces": [asdict(piece) for piece in pieces]})
    return found


def check_writable(path: Path, option: str) -> None:
    """Before minutes of measuring, not after them."""
    if path.is_dir():
        raise SettingsError(
            f"{option} {path} is a folder. Give the name of a file, e.g. {path / 'comm.json'}"
        )
    beside = _beside(path)
    try:
        beside.touch()
        beside.unlink()
    except OSError as error:
        raise SettingsError(
            f"{option} {path} cannot be written: {error.strerror}. Choose another place."
        ) from None


def write(results: Row, path: Path) -> None:
    """Whole or not at all."""
    beside = _beside(path)
    try:
        beside.write_text(json.dumps(results, indent=1) + "\n")
        beside.replace(path)
    except OSError as error:
        raise FarandoleError(f"{path} cannot be written: {error.strerror}. The table is all there is.") from error
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")
