"""The options of a run's checkpoints: when they are saved, and which ones stay."""

from __future__ import annotations

import re
from pathlib import Path

from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.timing import When
from farandole.errors import SettingsError

__all__ = ["FOLDER", "RESUME", "kept", "parsed_when", "refuse_checkpoints"]

FOLDER = "checkpoints"
"""In the run directory."""
RESUME = ("auto", "required", "off")

_EVERY = re.compile(r"(?P<count>\d+) ?(?P<unit>|epochs?|steps?|s|m|h)|auto(:(?P<failures>\d+)(?P<failures_unit>s|m|h))?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_FAILURES_S = 24 * 3600.0
"""How far failures are apart where nobody says so."""
_LARGER_IS_BETTER = ("acc", "auc", "corr", "r2")


def parsed_when(text: str, passes: int = 1) -> When:
    """`5` or `5epochs`, `100steps`, `600s`, `10m`, `1h`, `auto`, `auto:6h`; a step is `passes` batches."""
    found = _EVERY.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"checkpoint_every={text!r}: expected e.g. 5 (epochs), 100steps, 600s, 10m, 1h, auto (as often as loses least with "
            "a failure a day) or auto:6h"
        )
    if text.startswith("auto"):
        given = found["failures"]
        return When(failures_s=int(given) * _SECONDS[found["failures_unit"]] if given else _FAILURES_S)
    count, unit = int(found["count"]), found["unit"]
    if unit in _SECONDS:
        return When(seconds=count * _SECONDS[unit])
    return When(steps=count * passes) if unit.startswith("step") else When(epochs=count)


def kept(last: int, best: str) -> Keep:
    """The last ones, and the best by a metric."""
    mode = "max" if any(word in best for word in _LARGER_IS_BETTER) else "min"
    return Keep(last=last, best=1 if best else 0, metric=best, mode=mode)


def refuse_checkpoints(folder: Path) -> None:
    """Of another run, in the folder of one that is not to go on from them."""
    from farandole.checkpoint.folder import entries

    there = [entry for entry in entries(folder) if not entry.kind]
    if there:
        raise SettingsError(
            f"--resume off: {folder} has checkpoints, the newest is {there[-1].path.name}. Give another --checkpoint-dir or "
            "--output-dir, or remove them."
        )
