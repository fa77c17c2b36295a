"""A run from settings to files: in this process, as one of the ranks that were started, or as the only one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from farandole.errors import FarandoleError, RankFailedError, SettingsError
from farandole.launch.place import find_place
from farandole.train.progress import Teller
from farandole.train.settings import RunSettings

__all__ = ["LOG", "TIMELINE", "prepare", "run_as_rank", "run_here"]

LOG = "log.txt"
TIMELINE = "timeline.json"


def run_here(
    settings: RunSettings, *, stream: TextIO | None = None, began: float | None = None, comm: Any = None
) -> dict[str, Any]:
    """The run's record, on every rank; rank 0 writes the files. Collective: every rank calls it."""
    from farandole.train.record import make_record, write_history, write_record
    from farandole.train.session import run_on_rank

    began = time.perf_counter() if began is None else began
    started_s = time.time() - (time.perf_counter() - began)
    first = find_place(os.environ).rank == 0
    folder = settings.output_dir
    if first and folder is not None:
        _make_folder(folder)
    teller = Teller(stream if first else None, None if folder is None else folder / LOG)
    result = run_on_rank(settings, teller, began=began, comm=comm)
    record = make_record(settings, result, started_s=started_s)
    if first and folder is not None:
        record["files"] = _files(folder)
        write_history(folder, record)
        write_record(folder, record)
    return record


def prepare(settings: RunSettings, ranks: int) -> None:
    """What can be refused before any rank starts is refused; the run directory and missing data are made."""
    from farandole.train.plan import check_ranks
    from farandole.train.session import make_missing_data

    check_ranks(settings, ranks)
    if settings.output_dir is not None:
        _make_folder(settings.output_dir)
    make_missing_data(settings)


def run_as_rank(given: Mapping[str, Any], *, began: float, stream: TextIO) -> int:
    """An exit code. What is wrong on every rank is said once, by rank 0; what happened on one, by that one."""
    try:
        run_here(RunSettings.from_flat(given), stream=stream, began=began)
    except RankFailedError:
        raise
    except FarandoleError as error:
        if find_place(os.environ).rank == 0 or not isinstance(error, SettingsError):
            print(f"farandole: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, SettingsError) else 1
    return 0


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"output_dir {folder} cannot be made: {error.strerror}. Choose another --output-dir."
        ) from error


def _files(folder: Path) -> dict[str, str | None]:
    """By what they are; the launcher merges the ranks' timelines when all have ended."""
    recorded = "FARANDOLE_TIMELINE" in os.environ
    return {
        "record": "run.json",
        "history": "history.csv",
        "log": LOG,
        "model": "model.keras",
        "timeline": TIMELINE
        if recorded and Path(os.environ["FARANDOLE_TIMELINE"]).parent == folder.absolute()
        else None,
    }
