"""`farandole run` as a user types it."""

import contextlib
import csv
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dying import AT_SECOND_CHECKPOINT
from farandole.data.make import make
from farandole.observe.analysis import analyse
from farandole.workloads.finding import tables_of
from repository import ROOT

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")

SMALL = ["--conv", "4", "5", "1", "4", "3", "1", "--pool", "1", "4", "--dense", "8", "--batch_size", "10"]
LIMIT_S = 150


def farandole(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | (env or {}), stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nt3")
    make(tables_of("nt3"), folder, rows=40, features=60, threads=1)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("run")
    options = ["-n", "2", "--threads", "1", "--data-dir", str(data), "--epochs", "4", "--output-dir", "here", "--warmup-epochs", "1"]
    return folder / "here", farandole("run", "nt3", *options, *SMALL, cwd=folder, env={"OMP_NUM_THREADS": "2"})


def test_what_is_shown(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, run = finished
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert re.match(r"nt3 \(demo\) will take at most about \d+ MiB a rank, to train: \d+ MiB more than now, 0 MiB of it data; ", lines[0])
    assert lines[1].startswith("nt3 (demo) on 2 ranks, Keras on torch: 518 parameters")
    assert lines[4].startswith("note: 2 epochs a rank")
    assert any(line.startswith("note: validation is on the test set and steers the learning rate") for line in lines[5:7])
    assert any(line.startswith("2 ranks with 1 thread each, 1 node, ") for line in lines)
    assert any(line.startswith("gradients: 0.00 MiB a step in 1 message (flat ") for line in lines)
    assert any(line.startswith("communication took ") and "; training waited " in line for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("epoch ")] == ["1/2", "2/2"]
    for phase in ("compile", "load", "preprocess", "broadcast", "train", "evaluate", "total"):
        assert any(line.startswith(f"{phase} ") for line in lines), phase
    assert any(line.split() == ["model", str(folder.relative_to(folder.parent) / "model.keras")] for line in lines)
    assert lines[-1].split() == ["page", str(folder.relative_to(folder.parent) / "report.html")]
    assert "2 ranks trained for 2 epochs in " in (folder / "report.html").read_text()
    assert (folder / "log.txt").read_text() == "".join(f"{line}\n" for line in lines[: lines.index("")])


def test_what_is_kept(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    record = json.loads((folder / "run.json").read_text())
    assert record["ranks"] == record["trained_as"] == 2
    assert record["plan"]["rate"] == pytest.approx(2 * record["settings"]["learning_rate"])
    assert record["weights"]["same_on_all_ranks"] is True
    assert len(record["seconds"]["train"]["ranks"]) == len(record["steps"]["ranks"]) == 2
    assert (record["threads"], record["nodes"], record["replicas"], record["partitions"]) == (1, 1, 2, 1)
    steps = record["steps"]["ranks"][1]
    assert steps["count"] == record["plan"]["steps"] and 0 < steps["p05"] <= steps["p50"] <= steps["max"]
    sent = record["communication"]
    assert sent["bytes_per_step"] >= 4 * record["parameters"] and sent["messages_per_step"] == 1
    assert sent["bytes"][0] >= 2 * record["plan"]["steps"] * sent["bytes_per_step"]
    assert "collective" not in record["reasons"] and sent["collective"].startswith("flat ")
    total = record["seconds"]["total"]["ranks"][0]
    parts = sum(found["ranks"][0] for name, found in record["seconds"].items() if name != "total")
    assert parts == pytest.approx(total, rel=0.25), "the phases add up"
    assert record["communication"]["bytes"][0] > 0 and record["parameters"] == 518
    assert set(record["final"]["test"]) == {"loss", record["metric"]} == {"loss", "accuracy"}
    with (folder / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("loss", "val_loss", "test_loss", "test_accuracy"):
        assert [float(row[name]) for row in rows] == [epoch[name] for epoch in record["epochs"]]
    names = {event.get("name") for event in json.loads((folder / "timeline.json").read_text())}
    assert {"load", "preprocess", "broadcast", "train", "evaluate"} <= names


def test_what_the_timeline_says(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = finished
    record, found = json.loads((folder / "run.json").read_text()), analyse(folder / "timeline.json")
    steps = 2 * record["plan"]["steps"]
    for rank, told in enumerate(found["ranks"]):
        assert len(told["steps"]) == steps
        for name in ("load", "train", "evaluate"):
            assert told["phases"][name] == pytest.approx(record["seconds"][name]["ranks"][rank], rel=0.05, abs=0.02)
        assert told["exposed_s"] > 0 and told["wait_s"] <= told["exposed_s"]
        assert told["exposed_s"] + told["hidden_s"] >= told["comm_s"] * 0.99
    calls = {row["name"]: row["calls"] for row in found["components"]}
    assert calls["fit"] == 1
    assert [calls[name] for name in ("framework run", "forward", "backward", "optimizer")] == [steps] * 4
    assert calls["allreduce"] >= steps and calls["broadcast"] >= 1 and calls["read"] >= 1


def test_a_terminal_shows_how_far_it_is_and_the_log_has_none_of_that(tmp_path: Path, data: Path) -> None:
    words = ["run", "nt3", "-n", "2", "--data-dir", str(data), "--epochs", "4", "--output-dir", "here", *SMALL]
    ours, terminal = pty.openpty()
    said: list[bytes] = []
    reading = threading.Thread(target=lambda: said.extend(all_of(ours)))
    with subprocess.Popen(
        [sys.executable, "-m", "farandole", *words], cwd=tmp_path, stdout=terminal, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100"},
    ) as run:  # fmt: skip
        os.close(terminal)
        reading.start()
        _, warned = run.communicate(timeout=LIMIT_S)
        reading.join(LIMIT_S)
    os.close(ours)
    assert run.returncode == 0, warned
    shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", b"".join(said).decode())
    assert re.search(r"loading data ━+ 0 s", shown)
    assert re.search(r"training ━+.? *━* *1/2 epochs, \d+ s, about \d+ s left", shown), shown
    log = (tmp_path / "here" / "log.txt").read_text()
    assert [line.split()[1] for line in log.splitlines() if line.startswith("epoch ")] == ["1/2", "2/2"]
    assert not [line for line in log.splitlines() if line not in shown.replace("\r", "\n").split("\n")]
    assert "\x1e" not in shown + log + warned.decode() and "━" not in log


def all_of(terminal: int) -> Iterator[bytes]:
    """Until its last writer has gone."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 1 << 16):
            yield data


def test_json_alone_on_standard_output(tmp_path: Path, data: Path) -> None:
    # A rate at which nothing is learnt, and less validation than test data: every epoch's test is the last one's.
    options = ["--data-dir", str(data), "--epochs", "2", "--json", "--train_steps", "2", "--optimizer", "lars", "--power"]
    still = ["--learning_rate", "1e-30", "--val_steps", "1", "--batch_size", "4"]
    candle = ["--model_name", "nt3", "--run_id", "RUN000", "-v", "--train_bool", "true", "--drop", "0.3", "--metrics", "mse"]
    candle += ["--category_cutoffs", "0.0", "0.5", "--gpus"]
    for name in ("report.html", "model.keras"):
        (tmp_path / "out here" / name).mkdir(parents=True)  # so that it cannot be written
    run = farandole("run", "nt3", *options, *SMALL, *still, *candle, "--output-dir", "out here", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "the results are complete, but their page could not be made" in run.stderr
    assert run.stderr.splitlines()[-1] == "To try again, type: farandole report 'out here'"
    record: dict[str, Any] = json.loads(run.stdout)
    assert record["plan"]["steps"] == 2 and record["settings"]["optimizer"] == "lars"
    assert record["settings"]["dropout"] == 0.3, "by its older name"
    assert record["notes"] == [
        "ignored: metrics='mse', category_cutoffs=[0.0, 0.5]. It changes a training of CANDLE's, and none here.",
        "validation is on the test set and steers the learning rate: test figures are no independent test (see --val_split)",
        "the model is not kept: out here/model.keras cannot be written (Is a directory)",
    ]
    assert record["files"]["model"] is None
    assert "epoch 2/2" in run.stderr and "note: ignored: metrics='mse'" in run.stderr
    for epoch in record["epochs"]:
        found = {name: epoch[f"test_{name}"] for name in ("loss", "accuracy")}
        assert found == pytest.approx(record["final"]["test"], rel=1e-5)
        assert epoch["val_loss"] != pytest.approx(epoch["test_loss"], rel=1e-5)
    assert record["epochs"][0]["test_s"] > 0
    folder = tmp_path / record["settings"]["output_dir"]
    assert (folder / "run.json").is_file()
    power = json.loads((folder / record["files"]["power"]).read_text())
    assert power["total"]["provenance"] in ("modelled", "measured-node", "measured-component")
    assert {"load", "train", "evaluate"} <= set(power["phases"])
    assert record["phases_w"] == {name: found["mean_w"] for name, found in power["phases"].items()} and record["phases_w"]["train"] > 0
    assert record["power_provenance"] == power["total"]["provenance"]
    assert analyse(folder / "timeline.json")["power"][0]["provenance"] == power["total"]["provenance"]


@pytest.mark.more  # ranks/test_run_not_finite.py has it within one program
@pytest.mark.parametrize("framework", ["torch", "tensorflow", "jax"])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, data: Path, framework: str) -> None:
    options = ["-n", "2", "--framework", framework, "--data-dir", str(data), "--epochs", "4", "--learning_rate", "1e30", "--activation", "linear"]
    options += ["--checkpoint-every", "1steps"]
    run = farandole("run", "nt3", *options, *SMALL, cwd=tmp_path)
    assert run.returncode == 1
    assert "the loss is" in run.stderr and "of epoch 1" in run.stderr and "smaller learning_rate" in run.stderr
    assert "The last good checkpoint, of step 1, is in out/nt3-" in run.stderr
    assert "repeat  farandole run nt3" in run.stderr



@pytest.mark.more  # two trainings; faults/ kills smaller ones
def test_a_killed_run_ends_with_the_same_weights(
    finished: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, data: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_SECOND_CHECKPOINT)
    options = ["--data-dir", str(data), "--warmup-epochs", "1", "--output-dir", "here", *SMALL]
    often = ["-n", "2", "--epochs", "4", "--checkpoint-every", "3steps", "--restarts", "1", "--power"]
    run = farandole("run", "nt3", *options, *often, cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"})
    assert run.returncode == 0, run.stderr
    assert "starting again (1 of 1 restarts)" in run.stderr
    undisturbed, record = (json.loads((path / "run.json").read_text()) for path in (finished[0], tmp_path / "here"))
    assert record["weights"] == undisturbed["weights"]
    assert [without_times(epoch) for epoch in record["epochs"]] == [without_times(e) for e in undisturbed["epochs"]]
    assert record["checkpoints"]["starts"] == 2
    assert record["communication"]["bytes"] == undisturbed["communication"]["bytes"], "of both parts"
    assert record["checkpoints"]["resumed_from"].endswith("00000002-step-6")
    listed = farandole("checkpoint", "ls", "here/checkpoints", "--json", cwd=tmp_path)
    joules = [row["energy_j"] for row in json.loads(listed.stdout)]
    assert joules == sorted(joules) and joules[-1] == record["checkpoints"]["energy_j"] > 0
    power = json.loads((tmp_path / "here" / "power.json").read_text())
    assert record["checkpoints"]["energy_provenance"] == power["total"]["provenance"]

    more = ["--epochs", "6", "--framework", "jax", "--resume", "required", "--time-limit", "1"]
    run = farandole("run", "nt3", *options, *more, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "it was saved by Keras on torch" in run.stderr
    assert "each of 2 ranks had done 1 of its epochs, which count as 2 of 1's" in run.stdout
    assert "epoch 2 begins again" in run.stderr
    assert "ended at step 7" in run.stderr and "To go on, type: farandole run nt3 " in run.stderr
    assert not (tmp_path / "here" / "run.json").exists()
    shown = farandole("checkpoint", "show", "here/checkpoints", cwd=tmp_path)
    assert "joules: unknown (power was not sampled: `farandole run --power`" in shown.stdout, shown.stdout


@pytest.mark.soak  # two trainings
def test_a_run_goes_on_with_ranks_that_emulate_those_that_are_gone(tmp_path: Path, data: Path) -> None:
    options = ["--data-dir", str(data), "--emulate-ranks", "2", "--checkpoint-every", "1", "--output-dir", "here", *SMALL]
    steps = []
    for ranks, epochs in (("2", "4"), ("1", "8")):
        run = farandole("run", "nt3", "-n", ranks, "--epochs", epochs, *options, cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        listed = farandole("checkpoint", "ls", "here/checkpoints", "--json", cwd=tmp_path)
        steps.append(json.loads(listed.stdout)[-1]["step"])
    assert "a step was made after 1 batches, and is after 2" in run.stderr
    assert steps[1] == 4 * steps[0], "twice the epochs, of twice the batches"


def without_times(epoch: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in epoch.items() if name not in ("seconds", "validation_s", "test_s")}


SUPERVISED = """
import json, random, sys
from types import SimpleNamespace
from farandole.candle import nt3

small = {"data_dir": sys.argv[1], "conv": [4, 5, 1], "pool": [4], "dense": [8], "batch_size": 10, "epochs": 2}
parameters = nt3.initialize_parameters(sys.argv[2], **small)
before = random.getstate()
found = nt3.run(parameters)
assert random.getstate() == before, "those of a search"
try:
    nt3.objective(small, comm=[0, 1])
except ValueError as error:
    assert "comm=[0, 1]: this process trains on other ranks already, 1 in all" in str(error)
else:
    raise AssertionError("it trained on the ranks there were")
score = nt3.objective(SimpleNamespace(parameters={**small, "dropout": 0.3}), comm=[0])
print(json.dumps([parameters["activation"], found.history, score]))
"""


@pytest.mark.more
def test_a_supervisor_runs_it(tmp_path: Path, data: Path) -> None:
    config = tmp_path / "nt3_model.txt"
    config.write_text("[Global_Params]\nactivation = 'tanh'\nepochs = 400\n")
    run = subprocess.run(
        [sys.executable, "-c", SUPERVISED, str(data), str(config)],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    activation, history, score = json.loads(run.stdout)
    assert activation == "tanh" and 0 <= score <= 1
    assert len(history["val_accuracy"]) == len(history["loss"]) == 2
    assert list(tmp_path.iterdir()) == [config], "nothing is written where no directory was named"


@pytest.mark.more
def test_a_supervisors_lines_are_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "upf.txt").write_text('{"dropout": 0.0}\n{"dropout": 0.4, "ckpt_save_weights_only": false}\n')
    words = ["launch", "-n", "2", "--", "python", str(ROOT / "examples" / "candle_supervisor.py"), "--upf", "upf.txt"]
    run = farandole(*words, "--epochs", "2", "--objective", "val_acc", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    told = [line.removeprefix("[0] ") for line in run.stdout.splitlines() if "val_acc" in line]
    assert [line.split("  ")[1] for line in told] == (tmp_path / "upf.txt").read_text().splitlines()
    assert all(0 <= float(line.split()[1]) <= 1 for line in told)


@pytest.mark.more
def test_optuna_searches(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "optuna_search.py"), "--trials", "1", "--epochs", "1"],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("best validation accuracy 0.")


@pytest.mark.soak
def test_deephyper_searches(tmp_path: Path) -> None:
    pytest.importorskip("deephyper")
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "deephyper_search.py"), "--evaluations", "1", "--epochs", "1"],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("best validation accuracy 0.") and "'dense'" in run.stdout


def test_list(tmp_path: Path) -> None:
    shown = farandole("run", "--list", cwd=tmp_path).stdout
    assert all(name in shown for name in ("nt3", "p1b1", "p1b2", "p1b3", "demo", "test", "paper"))


def test_help_names_the_choices(tmp_path: Path) -> None:
    shown = {name: " ".join(farandole("run", name, "--help", cwd=tmp_path).stdout.split()) for name in ("p1b1", "p1b3")}
    for choices in ("sgd, rmsprop, adam", "maxabs, minmax, std, none"):
        assert choices in shown["p1b1"] and choices in shown["p1b3"]
    assert "ae, vae, cvae" in shown["p1b1"] and "ae, vae, cvae" not in shown["p1b3"]
    assert "naive_balancing, none" in shown["p1b3"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nt3", "-n", "5", "--epochs", "12"], "12 epochs do not divide over 5 ranks (12 % 5 = 2)"),
        (["nt3", "-n", "0"], "how many ranks?"),
        (["nt3", "--preset", "paper", "--data-dir", "absent"], "nt3 needs nt_train2.csv, nt_test2.csv in absent"),
        (["nt3", "--reg_l2", "1"], "unknown option --reg_l2."),
        (["nt3", "--epoch", "1"], "unknown option --epoch. Did you mean --epochs? To see all options, type: farandole run nt3 --help"),
        (["nt3", "--dropout", "much"], "--dropout = 'much' is no literal"),
        (["nt3", "--config_file", "absent.txt"], "absent.txt is no config file"),
        (["nt3", "--checkpoint-every", "often"], "expected e.g. 5 (epochs), 100steps"),
        ([], "which workload?"),
        (["-v", "nt3"], "which workload? nt3 was taken for a value of an option: begin with it."),
        (["p1b2", "--reg_l2", "-1"], "reg_l2=-1.0: expected 0 or more"),
        (["mnist"], "Use one of nt3, p1b1, p1b2, p1b3"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path, words: list[str], told: str) -> None:
    run = farandole("run", *words, cwd=tmp_path)
    assert run.returncode in (1, 2) and run.stdout == ""
    assert told in run.stderr and "Traceback" not in run.stderr


@pytest.mark.more
def test_too_large_a_batch_is_refused_once(tmp_path: Path, data: Path) -> None:
    run = farandole(
        "run", "nt3", "-n", "2", "--data-dir", str(data), *SMALL, "--batch-size", "30", "--parallel", "steps", cwd=tmp_path
    )
    assert run.returncode == 2
    told = [line for line in run.stderr.splitlines() if line.startswith("[")]
    assert len(told) == 1 and told[0].endswith("The largest batch that works is 20."), run.stderr
