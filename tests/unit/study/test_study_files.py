"""The files of studies/ can be run, and what their scalars become can be read."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from farandole.study.estimate import Estimate
from farandole.study.folder import StudyFolder
from farandole.study.loaders import loaders_study
from farandole.study.points import Point
from farandole.study.scalars import export
from farandole.study.settings import StudySettings, read_toml
from repository import ROOT

FILES = sorted((ROOT / "studies").glob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_study_file_can_be_planned(file: Path) -> None:
    content = read_toml(file)
    if content.pop("kind") == "loaders":
        assert loaders_study(**content, make_files=False).points()
        return
    study = StudySettings(**read_toml(file))
    points = study.points()
    assert len({point.name for point in points}) == len(points) > 1
    assert Estimate().seconds(points) < 4 * 3600


def test_accuracy_over_ranks_has_the_papers_divisions() -> None:
    points = StudySettings(**read_toml(ROOT / "studies" / "nt3-accuracy.toml")).points()
    ranks = {point.settings["emulate_ranks"] for point in points}
    assert {1, 384} <= ranks and {point.settings["lr_scaling"] for point in points} == {"linear", "none"}
    assert len({point.settings["seed"] for point in points}) >= 3


# What TensorBoard finds in a folder, without TensorFlow, which it uses where there is one.
READ = """
import json, sys
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1]).Reload()
print(json.dumps({name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}))
"""


def test_tensorboard_reads_what_was_written_without_tensorflow(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder = trained_study(tmp_path / "s")
    export = "import sys\nfrom pathlib import Path\nfrom farandole.study.folder import StudyFolder\nfrom farandole.study.scalars import export\n"
    export += "print(export(StudyFolder(Path(sys.argv[1])), 'tensorboard'))\nassert 'tensorflow' not in sys.modules"
    for _ in range(2):
        told = subprocess.run([sys.executable, "-c", export, str(folder.path)], capture_output=True, text=True, timeout=60)
        assert told.returncode == 0 and told.stdout.startswith("scalars   2 runs for tensorboard: tensorboard --logdir "), told.stderr
    runs = [folder.path / result["run"] for result in folder.last_results().values()]
    assert [len(list(run.glob("events.out.tfevents.*"))) for run in runs] == [1, 1, 0]
    read = subprocess.run([sys.executable, "-c", READ, str(runs[0])], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(read.stdout) == {
        "loss": [[1, 0.5], [2, 0.25]], "test_s": [[2, pytest.approx(0.1)]], "figures/total_s": [[2, 3.5]],
    }  # fmt: skip


def trained_study(path: Path) -> StudyFolder:
    """Two points, each of two epochs; a third has failed."""
    points = [Point(settings={"ranks": ranks, "nodes": 1, "loader": "it's"}) for ranks in (1, 2, 4)]
    folder = StudyFolder(path)
    about = {"kind": "strong", "title": "it's a study", "benchmark": None, "preset": None, "fixed": {}}
    folder.write_plan({**about, "points": [point.as_dict() for point in points]})
    for point in points:
        run = folder.path / folder.new_run(point)
        (run / "history.csv").write_text("epoch,loss,test_s\n1,0.5,\n2,0.25,0.1\n")
        told = {"schema": 2, "study": "strong", **point.as_dict(), "status": "failed" if point.settings["ranks"] == 4 else "ok"}
        folder.append({**told, "run": f"points/{point.name}", "figures": {"total_s": 3.5, "metric": "r2", "energy_j": None}})
    return folder


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


class Mlflow:
    """Runs by id, as MLflow keeps them: tags, parameters, metrics with their steps."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.experiment = ""
        self.open: dict[str, Any] = {}

    def set_experiment(self, name: str) -> SimpleNamespace:
        self.experiment = name
        return SimpleNamespace(experiment_id="7")

    def search_runs(self, experiments: list[str], text: str) -> list[SimpleNamespace]:
        assert experiments == ["7"]
        wanted = text.removeprefix("tags.`farandole.point` = '").removesuffix("'").replace("\\'", "'")
        found = [key for key, run in self.runs.items() if run["tags"]["farandole.point"] == wanted]
        return [SimpleNamespace(info=SimpleNamespace(run_id=key)) for key in found]

    def delete_run(self, key: str) -> None:
        del self.runs[key]

    @contextlib.contextmanager
    def start_run(self, run_name: str, tags: dict[str, str]) -> Iterator[None]:
        self.made += 1
        self.open = self.runs[str(self.made)] = {"name": run_name, "tags": tags, "metrics": []}
        yield

    def log_params(self, settings: dict[str, Any]) -> None:
        self.open["settings"] = settings

    def log_metrics(self, scalars: dict[str, float], step: int | None = None) -> None:
        self.open["metrics"].append((step, scalars))


def test_mlflow_gets_a_run_for_every_point_and_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Mlflow()
    calls = {name: getattr(mlflow, name) for name in ("set_experiment", "start_run", "log_params", "log_metrics")}
    client = SimpleNamespace(MlflowClient=lambda: mlflow)
    stand_in(monkeypatch, "mlflow", **calls, tracking=client, exceptions=SimpleNamespace(MlflowException=OSError))
    folder = trained_study(tmp_path / "it's here")
    for _ in range(2):
        assert export(folder, "mlflow") == "scalars   2 runs for mlflow"
    assert mlflow.experiment == "it's a study" and mlflow.made == 4
    one, two = mlflow.runs.values()
    assert (one["name"], two["name"]) == ("1 rank", "2 ranks") and one["settings"] == {"ranks": 1, "nodes": 1, "loader": "it's"}
    assert one["metrics"] == [(1, {"loss": 0.5}), (2, {"loss": 0.25, "test_s": 0.1}), (None, {"figures/total_s": 3.5})]


def test_wandb_gets_a_run_for_every_point_and_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: dict[str, dict[str, Any]] = {}

    def init(**given: Any) -> SimpleNamespace:
        run = runs[given["id"]] = {**given, "logged": [], "summary": {}, "finished": False}
        return SimpleNamespace(
            log=lambda scalars, step: run["logged"].append((step, scalars)), summary=run["summary"], finish=lambda: run.update(finished=True)
        )

    stand_in(monkeypatch, "wandb", init=init, errors=SimpleNamespace(Error=OSError))
    folder = trained_study(tmp_path / "study")
    for _ in range(2):
        assert export(folder, "wandb") == "scalars   2 runs for wandb"
    one, two = runs.values()
    assert (one["name"], two["name"]) == ("1 rank", "2 ranks") and one["group"] == "it's a study" and one["project"] == "farandole"
    assert one["config"] == {"ranks": 1, "nodes": 1, "loader": "it's"} and one["dir"].startswith(str(folder.path))
    assert one["logged"] == [(1, {"loss": 0.5}), (2, {"loss": 0.25, "test_s": 0.1})]
    assert one["summary"] == {"figures/total_s": 3.5} and one["finished"] and two["finished"]


@pytest.mark.soak
@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_the_packages_themselves_take_the_scalars(tmp_path: Path, package: str) -> None:
    """Twice: what is written again is the same run."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; type: pip install {package}")
    folder = trained_study(tmp_path / "study")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    environment = os.environ | {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": store, "WANDB_SILENT": "true"}
    for _ in range(2):
        told = subprocess.run(
            [sys.executable, "-m", "farandole", "study", "table", str(folder.path), "--scalars", package],
            capture_output=True, text=True, timeout=170, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        assert f"scalars   2 runs for {package}" in told.stdout
    if package == "wandb":
        assert len({path.name for path in folder.path.rglob("*.wandb")}) == 2
        return
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        run, _ = database.execute("select run_uuid from runs where lifecycle_stage = 'active'").fetchall()
        metrics = database.execute("select key, value, step from metrics where run_uuid = ?", run).fetchall()
    assert {("loss", 0.5, 1), ("loss", 0.25, 2), ("figures/total_s", 3.5, 0)} <= set(metrics)
