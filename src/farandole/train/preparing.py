"""What is refused before a run's ranks start, and what is made for them: the run directory, and missing data."""

from __future__ import annotations

import importlib.util
import sys

from farandole.errors import DataError, SettingsError
from farandole.train.checkpoints import refuse_checkpoints
from farandole.train.plan import check_ranks
from farandole.train.settings import RunSettings

__all__ = ["LOG", "MODEL_FILES", "POWER", "TIMELINE", "make_missing_data", "open_folder", "packages", "prepare"]

LOG = "log.txt"
TIMELINE = "timeline.json"
POWER = "power.json"
MODEL_FILES = {"keras": "model.keras", "torch": "model.pt"}
"""What a trained model is saved as."""


def prepare(settings: RunSettings, ranks: int) -> None:
    """What can be refused before any rank starts is refused; the run directory and missing data are made."""
    _check_installed(settings)
    check_ranks(settings, ranks)
    make_missing_data(settings)
    open_folder(settings)


def packages(settings: RunSettings) -> list[str]:
    return ["keras", settings.framework] if settings.api == "keras" else ["torch"]


def _check_installed(settings: RunSettings) -> None:
    missing = [name for name in packages(settings) if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(f"{' and '.join(missing)} cannot be found. Type: pip install 'farandole[{','.join(packages(settings))}]'")


def open_folder(settings: RunSettings) -> None:
    """The run directory, without what an earlier run has left, and with an empty log unless this one goes on from there."""
    folder, checkpoints = settings.output_dir, settings.checkpoint_folder
    if settings.resume == "off" and settings.checkpoint_place is not None:
        refuse_checkpoints(settings.checkpoint_place)
    if folder is None:
        return
    goes_on = checkpoints is not None and checkpoints.is_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").unlink(missing_ok=True)
        for name in ("history.csv", *MODEL_FILES.values(), "report.html"):
            if (folder / name).is_file():
                (folder / name).unlink()
        (folder / LOG).open("a" if goes_on else "w").close()
    except OSError as error:
        raise SettingsError(
            f"output_dir {folder} cannot be written to: {error.strerror}. Choose another --output-dir."
        ) from error


def make_missing_data(settings: RunSettings) -> None:
    """What the workload prepares, and files of a preset that makes them, where they are not there."""
    known, folder = settings.workload, settings.data_folder
    if known.prepare is not None:
        known.prepare(settings.parameters, folder)
    if known.files is None:
        return
    try:
        known.files.find(folder, known.roles(settings.parameters))
        return
    except DataError as error:
        if not settings.makes_data or known.files.sheets is None:
            raise
        missing = error
    from farandole.data.make import make

    try:
        make(known.files, folder, preset=settings.preset, progress=sys.stderr.isatty())
    except SettingsError:  # files are there that are not made like these: a run replaces none
        raise missing from None
    print(f"farandole: {folder} had no files of {known.name}: made synthetic ones", file=sys.stderr, flush=True)
