"""Workloads of a user's own, as a user types them: found, explained, trained, studied, searched; and refused where they cannot work."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from farandole.observe.analysis import analyse
from repository import ROOT

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

LIMIT_S = 120
SPIRALS = ROOT / "examples" / "own_workload_torch.py"
SHORT = ["--threads", "1", "--epochs", "2", "--train_steps", "6"]

MINE = """
from dataclasses import dataclass
import numpy as np
from farandole.workloads import ArraySamples, KerasModel, Parameters, TorchModel, TrainingData, Workload, option, split

@dataclass(kw_only=True, slots=True)
class Mine(Parameters):
    epochs: int = option(2, "passes")
    batch_size: int = option(5, "batch")
    widths: tuple[int, ...] = option((8,), "units of each hidden layer")

def load(parameters, folder):
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    return split(x, (x[:, 0] > 0).astype(np.int64))

def build(parameters, data):
    import torch
    return torch.nn.Linear(data.features, 2)

def loss(outputs, targets):
    import torch
    return torch.nn.functional.cross_entropy(outputs, targets)

def mine(torch={}, **given):
    model = {"torch": TorchModel(**({"build": build, "loss": loss} | torch))}
    return Workload(**({"name": "mine", "parameters": Mine, "load": load} | model | given))
"""


def farandole(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | env, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(f"{MINE}\nWORKLOAD = mine()\n")
    return path


# What is new, where it is found, how it is explained


@pytest.mark.parametrize("api", ["torch", pytest.param("keras", marks=pytest.mark.skipif(find_spec("keras") is None, reason="no Keras"))])
def test_a_new_file_trains_as_it_is(tmp_path: Path, api: str) -> None:
    written = farandole("run", "--new", "my_model.py", "--api", api, cwd=tmp_path)
    assert written.stdout == "my_model.py is a workload. To train it, type: farandole run my_model.py -n 2\n", written.stderr
    run = farandole("run", "my_model.py", "-n", "2", "--json", "--output-dir", "here", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["ranks"] == 2 and record["final"]["train"]["accuracy"] > 0.6
    assert record["api"] == api
    assert (tmp_path / "here" / record["files"]["model"]).is_file() and (tmp_path / "here" / "report.html").is_file()
    again = farandole("run", "--new", "my_model.py", cwd=tmp_path)
    assert again.returncode == 2 and again.stderr == "farandole: my_model.py is there already. Choose another name.\n"


def test_its_parameters_are_options_with_help(mine: Path) -> None:
    shown = " ".join(farandole("run", "mine.py", "--help", cwd=mine.parent).stdout.split())
    assert "parameters of mine" in shown and "--widths X [X ...] units of each hidden layer; default: 8" in shown
    assert "--conv" not in shown, "those of other workloads"


@pytest.mark.parametrize("typed", ["mine.py", "mine.py:OTHER", "mine:OTHER", "offered"])
def test_it_is_found_by_file_module_and_entry_point(mine: Path, typed: str) -> None:
    mine.write_text(mine.read_text() + "OTHER = WORKLOAD\n")
    offered = mine.parent / "mine-1.0.dist-info"
    offered.mkdir()
    (offered / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (offered / "entry_points.txt").write_text("[farandole.workloads]\noffered = mine:OTHER\n")
    run = farandole("run", typed, "--json", "--no-page", "--widths", "4", "3", cwd=mine.parent, PYTHONPATH=f"{mine.parent}:{ROOT / 'src'}")
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["benchmark"] == "mine" and record["settings"]["widths"] == [4, 3]


def test_workloads_of_other_packages_are_listed_and_two_of_one_name_are_not_mixed_up(mine: Path) -> None:
    for number, value in enumerate(("mine:WORKLOAD", "mine:OTHER", "absent:NO")):
        offered = mine.parent / f"m{number}-1.0.dist-info"
        offered.mkdir()
        (offered / "METADATA").write_text(f"Metadata-Version: 2.1\nName: m{number}\nVersion: 1.0\n")
        name = "lost" if value.startswith("absent") else "offered"
        (offered / "entry_points.txt").write_text(f"[farandole.workloads]\n{name} = {value}\n")
    path = f"{mine.parent}:{ROOT / 'src'}"
    listed = farandole("run", "--list", cwd=mine.parent, PYTHONPATH=path)
    assert listed.returncode == 0, "one that is broken does not hide the others"
    assert "lost  module absent cannot be imported" in listed.stdout and "nt3  normal or tumor" in listed.stdout
    run = farandole("run", "offered", cwd=mine.parent, PYTHONPATH=path)
    assert run.returncode == 2
    assert run.stderr.startswith("farandole: 'offered' names several workloads: mine:")


# With all that follows


def test_a_run_has_phases_a_timeline_power_and_emulated_ranks(tmp_path: Path) -> None:
    words = ["run", str(SPIRALS), "-n", "2", "--emulate-ranks", "4", "--power", *SHORT, "--output-dir", "here"]
    run = farandole(*words, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("spirals (default) on 2 ranks as 4 would, PyTorch: 4,482 parameters") and "trained by PyTorch" in run.stdout
    record = json.loads((tmp_path / "here" / "run.json").read_text())
    assert (record["ranks"], record["trained_as"]) == (2, 4)
    assert record["plan"]["rate"] == pytest.approx(4 * record["settings"]["learning_rate"]), "by the papers' rule"
    assert record["phases_w"]["train"] > 0
    found = analyse(tmp_path / "here" / "timeline.json")
    calls = {row["name"]: row["calls"] for row in found["components"]}
    for name in ("forward", "backward", "optimizer"):
        assert calls[name] >= 2 * 6, f"{name}: {calls}"
    assert "spirals" in (tmp_path / "here" / "report.html").read_text()


def test_a_study_of_it_measures_again_what_changed(mine: Path) -> None:
    words = ["study", "strong", "mine.py", "--ranks", "1,2", "--repeats", "1", "--out", "s", "--no-power"]
    first = farandole(*words, cwd=mine.parent)
    assert first.returncode == 0, first.stderr
    rows = [json.loads(line) for line in (mine.parent / "s" / "results.jsonl").read_text().splitlines()]
    assert [row["figures"]["test_loss"] > 0 for row in rows] == [True, True]
    assert first.stdout.startswith("mine (default): strong scaling\n") and "\ntrained by PyTorch\n" in first.stdout
    assert "2 of 2 points have a result" in farandole(*words, cwd=mine.parent).stderr
    assert farandole("report", "s", cwd=mine.parent).returncode == 0
    mine.write_text(mine.read_text().replace("nn.Linear(data.features, 2)", "nn.Linear(data.features, 3)"))
    assert "2 points, 0 have a result" in farandole(*words, "--dry-run", cwd=mine.parent).stdout


def test_a_study_file_names_it_under_benchmark(mine: Path) -> None:
    (mine.parent / "lr.toml").write_text('kind = "lr"\nbenchmark = "mine.py"\nrepeats = 1\n[axes]\nranks = [1]\nlearning_rate = [0.1, 0.01]\n')
    run = farandole("study", "lr.toml", "--dry-run", cwd=mine.parent)
    assert run.returncode == 0, run.stderr
    assert "2 points" in run.stdout


SEARCH = """
import json, sys
from farandole.train.supervisors import supervised
mine = supervised("mine.py")
scores = [mine.objective({"learning_rate": rate, "epochs": 1}) for rate in (1e-3, 1e-9)]
print(json.dumps(scores))
"""


def test_a_search_calls_it(mine: Path) -> None:
    run = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True, timeout=LIMIT_S, cwd=mine.parent, check=False)
    assert run.returncode == 0, run.stderr
    better, worse = json.loads(run.stdout)
    assert worse < better < 0, "of a loss, minus the loss"


# Both kinds of model


BOTH = """
def network(parameters, data):
    import keras
    return keras.Sequential([keras.Input((data.features,)), keras.layers.Dense(2, "softmax")])

WORKLOAD = mine(keras=KerasModel(build=network, loss="sparse_categorical_crossentropy"))
"""


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_a_workload_with_both_says_which_trained(mine: Path) -> None:
    mine.write_text(MINE + BOTH)
    found = {}
    for api in ("keras", "torch"):
        run = farandole("run", "mine.py", "--api", api, "--json", "--no-page", cwd=mine.parent)
        assert run.returncode == 0, run.stderr
        found[api] = json.loads(run.stdout)["api"]
    assert found == {"keras": "keras", "torch": "torch"}
    study = farandole("study", "strong", "mine.py", "--ranks", "1", "--vary", "api=keras,torch", "--repeats", "1", "--no-power", cwd=mine.parent)
    rows = [line.split()[0] for line in study.stdout.splitlines() if line.split()[:1] in (["api"], ["keras"], ["torch"])]
    assert rows[:3] == ["api", "keras", "torch"], study.stdout
    refused = farandole("run", str(SPIRALS), "--api", "keras", cwd=mine.parent)
    assert refused.returncode == 2 and "spirals has a model for torch. Use api=torch" in refused.stderr


@pytest.mark.more
def test_a_hugging_face_model_trains(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    example = ROOT / "examples" / "own_workload_hugging_face.py"
    run = farandole("run", str(example), "-n", "2", "--epochs", "2", "--json", "--no-page", "--output-dir", "here", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["final"]["validation"]["accuracy"] > 0.9


# Bad input: one line each, before ranks start


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("x = 1", "mine.py: there is no WORKLOAD in * It has no Workload. To write one"),
        (f"{MINE}\nA, B = mine(), mine(name='b')", "Its workloads are A, B: type e.g. mine.py:A"),
        (f"{MINE}\nWORKLOAD = Workload", "WORKLOAD is the class Workload, expected a farandole.workloads.Workload"),
        ("import not_installed_anywhere", "mine.py cannot be imported: ModuleNotFoundError: No module named 'not_installed_anywhere' (line 1)"),
        ("def f(:", "mine.py cannot be imported: SyntaxError: invalid syntax"),
        (f"{MINE}\nWORKLOAD = mine(name='nt3')", "called 'nt3', as one of Farandole's is"),
        (f"{MINE}\nWORKLOAD = mine(parameters=dict)", "expected a class that derives from farandole.workloads.Parameters"),
        (f"{MINE}\n@dataclass(kw_only=True)\nclass P(Parameters):\n    when: complex = option(1j, '')\nWORKLOAD = mine(parameters=P)",
         "P.when is of type complex: expected int, float, bool, str, a tuple"),
        (f"{MINE}\n@dataclass(kw_only=True)\nclass P(Parameters):\n    preset: int = option(1, '')\nWORKLOAD = mine(parameters=P)",
         "`farandole run` has an option --preset: give the parameter another name"),
        (f"{MINE}\nWORKLOAD = mine(presets={{'small': {{'width': 3}}}})", "preset 'small' sets width: no parameter; known: batch_size, epochs"),
        (f"{MINE}\nWORKLOAD = Workload(name='m', load=load)", "workload 'm': it has no model. Give keras=KerasModel(build=...) or torch="),
        (f"{MINE}\nWORKLOAD = mine(torch={{'loss': None}})", "TorchModel has neither a loss nor a train_step"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_work_is_explained_in_one_line(mine: Path, content: str, told: str) -> None:
    mine.write_text(content)
    run = farandole("run", "mine.py", "-n", "2", cwd=mine.parent)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("farandole: ") and len(run.stderr.splitlines()) == 1, run.stderr
    for part in told.split("*"):
        assert part in run.stderr, run.stderr
    assert not (mine.parent / "out").exists()


def test_what_is_no_file_or_module_is_explained(tmp_path: Path) -> None:
    for typed, told in (
        ("absent.py", "absent.py: there is no such file. To write one to begin with, type: farandole run --new absent.py"),
        ("absent:NO", "module absent cannot be imported: ModuleNotFoundError"),
        ("nt4", "no workload is called 'nt4'. Use one of cnn, gpt2, nt3, p1b1, p1b2, p1b3"),
    ):
        run = farandole("run", typed, cwd=tmp_path)
        assert run.returncode == 2 and told in run.stderr and "Traceback" not in run.stderr


# Bad input: what only ranks can see

ON_RANKS = {
    "raises": ("def bad(p, f):\n    if farandole.rank() == 1: raise KeyError('cell 7')\n    return load(p, f)\nWORKLOAD = mine(load=bad)",
               "[rank 1/2] workload mine: load() has failed: KeyError: 'cell 7' (*mine.py, line "),
    "differs": ("def bad(p, f):\n    d = load(p, f)\n    return d if farandole.rank() else TrainingData(train=d.train[:50], test=d.test)\nWORKLOAD = mine(load=bad)",
                "train: rank 1 has 70 samples of 4 float32 with targets of single int64, rank 0 has 50 samples"),
    "nothing": ("WORKLOAD = mine(load=lambda p, f: None)", "load() has returned NoneType, expected farandole.workloads.TrainingData"),
    "metric": ("WORKLOAD = mine(torch={'metrics': {'top': lambda o, t: o.max()}})",
               "metric 'top' has returned a tensor of shape () for a batch of 5: expected a value for each sample"),
    "loss": ("WORKLOAD = mine(torch={'loss': lambda o, t: o})", "the loss function has returned a tensor of shape (5, 2): expected one number"),
    "module": ("WORKLOAD = mine(torch={'build': lambda p, d: 'net'})", "build() has returned str, expected a torch.nn.Module"),
}  # fmt: skip


@pytest.mark.parametrize("case", ON_RANKS)
def test_what_goes_wrong_on_ranks_ends_all_of_them_and_is_named(mine: Path, case: str) -> None:
    code, told = ON_RANKS[case]
    mine.write_text(f"import farandole\n{MINE}\n{code}\n")
    run = farandole("run", "mine.py", "-n", "2", "--output-dir", "here", cwd=mine.parent)
    assert run.returncode in (1, 2)
    for part in told.split("*"):
        assert part in run.stderr, run.stderr
    assert "repeat  farandole run mine.py -n 2 --output-dir here" in run.stderr


MAXIMUM = """
import keras

class Maximum(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="maximum")
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, targets, outputs, sample_weight=None):
        self.most.assign(keras.ops.maximum(self.most, keras.ops.max(outputs)))

    def result(self):
        return self.most

def network(parameters, data):
    return keras.Sequential([keras.Input((data.features,)), keras.layers.Dense(1)])

WORKLOAD = mine(keras=KerasModel(build=network, loss="mse", metrics=lambda parameters, data: [Maximum()]))
"""


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_a_keras_metric_that_cannot_be_added_up_is_refused(mine: Path) -> None:
    mine.write_text(MINE + MAXIMUM)
    run = farandole("run", "mine.py", "-n", "2", "--output-dir", "here", cwd=mine.parent)
    assert run.returncode == 2
    assert "metric 'maximum': its state is no sum over samples" in run.stderr and "epoch 1" not in run.stdout
