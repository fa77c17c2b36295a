"""A run from settings to files: in this process, as one of the ranks that were started, or as the only one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from farandole.errors import CheckpointError, DataError, FarandoleError, RankFailedError, SettingsError
from farandole.launch.place import find_place
from farandole.observe.machine_time import MachineTime
from farandole.observe.timeline import POWER_VARIABLE
from farandole.train.importing import frameworks_alone
from farandole.train.preparing import LOG, MODEL_FILES, POWER, TIMELINE, open_folder, packages
from farandole.train.rank.machines import machine_use, threads_set
from farandole.train.settings import RunSettings

if TYPE_CHECKING:
    from farandole.workloads.samples import TrainingData

__all__ = ["is_first", "is_first_of_node", "run_as_rank", "run_here"]


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """The caller's: a search draws from Python's generator, which a run seeds for Keras, or from torch's."""
    before, torch = random.getstate(), sys.modules.get("torch")
    of_torch = torch.get_rng_state() if torch else None
    try:
        yield
    finally:
        random.setstate(before)
        if torch:
            torch.set_rng_state(of_torch)


@_random_numbers_kept()
def run_here(
    settings: RunSettings,
    *,
    stream: TextIO | None = None,
    began: float | None = None,
    comm: Any = None,
    data: TrainingData | None = None,
    prepared: bool = False,
    watch: MachineTime | None = None,
) -> dict[str, Any]:
    """The run's record, on every rank; rank 0 writes the files and tells of it. Collective: every rank calls it.

    `prepared`: whoever has started the ranks has called `prepare`. `watch`: since this rank has begun.
    """
    from farandole.data.make.manifest import made_set
    from farandole.observe.environment import environment
    from farandole.train.rank.progress import RunLog
    from farandole.train.rank.record import make_record
    from farandole.train.rank.session import on_rank_0, run_on_rank, start

    began = time.perf_counter() if began is None else began
    started_s = time.time() - (time.perf_counter() - began)
    watch = MachineTime() if watch is None else watch
    machine = environment(*packages(settings), "tensorflow-cpu", "mpich")  # whose load is not that of the run yet
    folder = settings.output_dir
    if settings.checkpoint_every and settings.checkpoint_folder is None:
        raise SettingsError(
            f"checkpoint_every={settings.checkpoint_every}: nobody says where. Give output_dir or checkpoint_dir, or leave out "
            "all settings of checkpoints."
        )
    with threads_set(settings.threads):
        start(settings.api, settings.framework, comm)
        if settings.checkpoint_place is not None and not prepared:
            on_rank_0(lambda: open_folder(settings))
        log = RunLog(stream, None if folder is None else folder / LOG) if is_first() else RunLog(None)
        trained = run_on_rank(settings, log, began=began, data=data, prepared=prepared)
    made = made_set(settings.data_folder, settings.workload.name) if data is None else None
    used, power = machine_use(watch), _power()
    record = make_record(settings, trained, started_s=started_s, machine=machine, made=made, used=used, power=power) | {
        "files": None if folder is None else _files(folder)
    }
    if folder is not None:
        on_rank_0(lambda: _write(folder, record, power))
    return record


def _power() -> dict[str, Any] | None:
    """What every node took, phase by phase, where it was sampled. Collective."""
    from farandole.comm.world.energy import job_energy

    return {"format": "farandole-power-job", "version": 1, **job_energy().as_dict()} if _samples_power() else None


def _write(folder: Path, record: dict[str, Any], power: dict[str, Any] | None) -> None:
    from farandole.train.rank.record import write_history, write_record

    write_history(folder, record)
    write_record(folder, record)
    if power is not None:
        (folder / POWER).write_text(json.dumps(power, indent=1) + "\n")


def _samples_power() -> bool:
    return os.environ.get(POWER_VARIABLE, "0") not in ("", "0")


def run_as_rank(given: Mapping[str, Any], *, began: float, stream: TextIO, prepared: bool = False) -> int:
    """An exit code; `given` are settings as `RunSettings.as_flat` has them. What is wrong with settings or files is said once a node; what happened on one rank, by that one.

    The run directory is rank 0's: under mpiexec each rank has made up one for itself.
    """
    from farandole.train.rank.session import on_rank_0, start

    watch = MachineTime()
    try:
        with threads_set(given["threads"]):
            with frameworks_alone(given["framework"]):
                start(given["api"], given["framework"])
            settings = RunSettings.from_flat(given)  # which may import a user's file
            settings.output_dir = on_rank_0(lambda: settings.output_dir)
            run_here(settings, stream=stream, began=began, prepared=prepared, watch=watch)
    except RankFailedError:
        raise
    except FarandoleError as error:
        if is_first_of_node() or not isinstance(error, (CheckpointError, DataError, SettingsError)):
            # In one write: where Python does not buffer, the end of the line would be another one, and ranks' lines would mix.
            print(f"farandole: {error}\n", end="", file=sys.stderr, flush=True)
        return 2 if isinstance(error, SettingsError) else 1
    return 0


def is_first_of_node() -> bool:
    """Before there is a world, as far as the environment tells."""
    from farandole.comm import world

    if world.is_initialized():
        return world.local_rank() == 0
    place = find_place(os.environ)
    return place.local_rank == 0 and (place.size > 1 or os.environ.get("SLURM_LOCALID", "0") == "0")


def is_first() -> bool:
    """Whether this is rank 0; before there is a world, as far as the environment tells."""
    from farandole.comm import world

    return world.rank() == 0 if world.is_initialized() else find_place(os.environ).rank == 0


def _files(folder: Path) -> dict[str, str | None]:
    """By what they are; the launcher merges the ranks' timelines when all have ended."""
    model = next((name for name in MODEL_FILES.values() if (folder / name).is_file()), None)
    timeline = Path(os.environ.get("FARANDOLE_TIMELINE", ""))
    return {
        "record": "run.json",
        "history": "history.csv",
        "log": LOG,
        "model": model,
        "power": POWER if _samples_power() else None,
        "timeline": TIMELINE if timeline == folder.absolute() / TIMELINE else None,
    }
