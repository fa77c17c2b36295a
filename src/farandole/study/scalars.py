"""Every epoch's figures of every run of a study, for TensorBoard, MLflow or Weights & Biases to draw."""

from __future__ import annotations

import csv
import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from farandole.errors import DataError, SettingsError
from farandole.results.cases import described, varying
from farandole.results.numbers import count
from farandole.study.folder import StudyFolder

__all__ = ["WHERE", "check_trained", "check_where", "export", "write_events"]

Scalars = Iterator[tuple[int, dict[str, float]]]
_INSTALL = {"tensorboard": "'farandole[tensorboard]'"}
_MODULES = {"tensorboard": "tensorboard.summary.writer.record_writer"}


def export(folder: StudyFolder, where: str) -> str:
    """What was written, in a sentence for people."""
    plan = folder.plan()
    check_where(where)
    check_trained(plan.get("fixed") or {})
    results = [one for one in folder.last_results().values() if one["status"] == "ok" and one["run"]]
    names = varying(one["settings"] for one in results)
    written = 0
    for result in results:
        run = folder.path / result["run"]
        if (run / "history.csv").exists():
            WHERE[where](folder, run, described(result["settings"], [n for n in names if n != "ranks"]), result)
            written += 1
    return f"scalars   {count(written, 'run')} for {where}" + (f": tensorboard --logdir {folder.path}" if where == "tensorboard" else "")


def check_where(where: str) -> None:
    """SettingsError where nothing can be written there: before hours of runs, not after them."""
    if where not in WHERE:
        raise SettingsError(f"--scalars {where}: unknown. Use one of {', '.join(WHERE)}.")
    _required(where)


def check_trained(fixed: Mapping[str, Any]) -> None:
    """SettingsError where no run leaves figures of epochs; `fixed` are the settings that all points of a study have."""
    if "command" in fixed:
        raise SettingsError("--scalars: a program of your own leaves no figures of its epochs, only of the whole run. Leave it out.")


def _history(run: Path) -> Scalars:
    with (run / "history.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield int(row["epoch"]), {name: float(text) for name, text in row.items() if name != "epoch" and text}


def _last(result: Mapping[str, Any]) -> dict[str, float]:
    found = result["figures"].items()
    return {f"figures/{name}": float(value) for name, value in found if isinstance(value, (int, float))}


def _tensorboard(folder: StudyFolder, run: Path, name: str, result: Mapping[str, Any]) -> None:
    for old in run.glob("events.out.tfevents.*"):
        old.unlink()
    epochs = dict(_history(run))
    last = max(epochs, default=0)
    epochs[last] = epochs.get(last, {}) | _last(result)
    write_events(run / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}", epochs)


def _mlflow(folder: StudyFolder, run: Path, name: str, result: Mapping[str, Any]) -> None:
    mlflow = _required("mlflow")
    try:
        _to_mlflow(mlflow, folder, run, name, result)
    except mlflow.exceptions.MlflowException as error:
        raise DataError(f"--scalars mlflow: {error}") from error


def _to_mlflow(mlflow: Any, folder: StudyFolder, run: Path, name: str, result: Mapping[str, Any]) -> None:
    """A run of before that is of the same point is replaced."""
    client, tags = mlflow.tracking.MlflowClient(), {"farandole.point": f"{folder.path.absolute()} {_point(result)}"}
    experiment = mlflow.set_experiment(folder.plan()["title"])
    for old in client.search_runs([experiment.experiment_id], f"tags.`farandole.point` = '{_quoted(tags['farandole.point'])}'"):
        client.delete_run(old.info.run_id)
    with mlflow.start_run(run_name=name, tags=tags):
        mlflow.log_params(result["settings"])
        for epoch, scalars in _history(run):
            mlflow.log_metrics(scalars, step=epoch)
        mlflow.log_metrics(_last(result))


def _wandb(folder: StudyFolder, run: Path, name: str, result: Mapping[str, Any]) -> None:
    wandb = _required("wandb")
    try:
        _to_wandb(wandb, folder, run, name, result)
    except wandb.errors.Error as error:
        raise DataError(f"--scalars wandb: {error}") from error


def _to_wandb(wandb: Any, folder: StudyFolder, run: Path, name: str, result: Mapping[str, Any]) -> None:
    """Under an id of its own: the same point is the same run, however often it is written."""
    known_as = hashlib.sha256(f"{folder.path.absolute()} {_point(result)}".encode()).hexdigest()[:16]
    started = wandb.init(
        project="farandole", group=folder.plan()["title"], name=name, id=known_as, config=dict(result["settings"]), dir=str(run)
    )
    for epoch, scalars in _history(run):
        started.log(scalars, step=epoch)
    started.summary.update(_last(result))
    started.finish()


def _point(result: Mapping[str, Any]) -> str:
    return f"{result['key']}-{result['repeat']}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _required(package: str) -> Any:
    if find_spec(package) is None:
        raise SettingsError(f"--scalars {package}: it is not installed. Type: pip install {_INSTALL.get(package, package)}")
    try:
        return import_module(_MODULES.get(package, package))
    except ImportError as error:
        raise SettingsError(f"--scalars {package}: it is installed, but cannot be imported: {error}") from error


WHERE: dict[str, Callable[[StudyFolder, Path, str, Mapping[str, Any]], None]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def write_events(path: Path, steps: Mapping[int, Mapping[str, float]]) -> None:
    """A TensorBoard event file: for each step, scalars by name."""
    # Not by its EventFileWriter, which imports TensorFlow where that is installed.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    now = time.time()
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for step, scalars in sorted(steps.items()):
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
            writer.write(Event(wall_time=now, step=step, summary=Summary(value=values)).SerializeToString())
