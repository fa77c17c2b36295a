"""Every example runs as its first lines say, and what it prints can be relied on."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ranktest import RanksResult, run_ranks
from ranktest.job import Job, Launcher
from repository import ROOT

EXAMPLES = ROOT / "examples"
README = ROOT / "README.md"
MIGRATING = ROOT / "docs" / "migrating-from-horovod.md"
LIMIT_S = 150.0
SHORT_TRAINING = ["--samples", "2048", "--width", "64", "--epochs", "3", "--global-batch", "64"]


def alone(workdir: Path, *words: str) -> Job:
    """Run Python without a launcher."""
    env = {"OMP_NUM_THREADS": "1"}
    with Job([sys.executable, *words], launcher="farandole", workdir=workdir, cwd=workdir, env=env) as job:
        assert job.wait(LIMIT_S), f"not done after {LIMIT_S:g} s{job.output()}"
        left = job.leftovers()
    assert not left, left
    assert job.returncode == 0, job.output()
    assert "Traceback" not in job.stderr, job.stderr
    return job


def on_two_ranks(script: Path, *arguments: str, launcher: Launcher = "farandole") -> RanksResult:
    run = run_ranks(2, script, launcher=launcher, args=arguments, timeout=LIMIT_S)
    # A thread that dies beside the training does not end it.
    assert "Traceback" not in run.stderr, run.stderr
    return run


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


@pytest.fixture(scope="module")
def trained_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    workdir = tmp_path_factory.mktemp("alone")
    job = alone(workdir, str(EXAMPLES / "train.py"), *SHORT_TRAINING, "--json", "result.json")
    measured: dict[str, Any] = json.loads((workdir / "result.json").read_text())
    assert len(re.findall(r"^epoch +\d/3: loss \d\.\d{4}, accuracy \d+\.\d%$", job.stdout, re.MULTILINE)) == 3
    assert re.search(
        r"^step \d+\.\d ms \(median of 96\), [\d,]+ samples/s over 1 rank", job.stdout, re.MULTILINE
    )
    return measured


def test_training_alone_learns(trained_alone: dict[str, Any]) -> None:
    assert trained_alone["ranks"] == 1
    assert trained_alone["samples_per_s"] == pytest.approx(64e3 / trained_alone["step_ms"])
    losses = [epoch["loss"] for epoch in trained_alone["epochs"]]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.soak
def test_training_the_same_batches_on_two_ranks_gives_the_same_curve(
    tmp_path: Path, trained_alone: dict[str, Any]
) -> None:
    result = tmp_path / "result.json"
    on_two_ranks(EXAMPLES / "train.py", *SHORT_TRAINING, "--json", str(result))
    measured = json.loads(result.read_text())
    assert (measured["ranks"], measured["steps"]) == (2, trained_alone["steps"])
    assert measured["global_batch"] == trained_alone["global_batch"] == 64
    for here, there in zip(measured["epochs"], trained_alone["epochs"], strict=True):
        # Sums over 2 x 32 samples round differently from sums over 64, and 96 steps carry that on.
        assert here["loss"] == pytest.approx(there["loss"], rel=1e-3)


@pytest.mark.soak
def test_more_ranks_mean_a_larger_batch_by_default() -> None:
    arguments = ["--samples", "1024", "--width", "16", "--epochs", "1", "--batch-size", "32"]
    run = on_two_ranks(EXAMPLES / "train.py", *arguments, launcher="mpiexec")
    assert "64 samples a step" in run.stdout
    assert "(median of 16)" in run.stdout


def test_a_horovod_script_needs_one_changed_line() -> None:
    code = (EXAMPLES / "horovod_script.py").read_text().split('"""', 2)[2]
    changed = [line for line in code.splitlines() if "farandole" in line.lower()]
    assert changed == ["import farandole.torch as hvd"]


def test_the_horovod_script_learns() -> None:
    arguments = ["--samples", "1024", "--epochs", "2", "--batch-size", "16"]
    run = on_two_ranks(EXAMPLES / "horovod_script.py", *arguments)
    assert "Train Epoch: 1 [0/512]" in run.stdout  # rank 0 has half of the samples
    losses = numbers(r"Test set: Average loss: ([\d.]+)", run.stdout)
    assert len(losses) == 2
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.more
def test_the_synthetic_benchmark_prints_horovod_s_lines() -> None:
    arguments = [
        "--model",
        "resnet18",
        "--batch-size",
        "2",
        "--image-size",
        "32",
        "--no-cuda",
        "--fp16-allreduce",
    ]
    arguments += ["--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"]
    run = on_two_ranks(EXAMPLES / "synthetic_benchmark.py", *arguments, launcher="mpiexec")
    lines = run.stdout.splitlines()
    assert lines[:5] == [
        "Model: resnet18", "Batch size: 2", "Number of CPUs: 2", "Running warmup...", "Running benchmark...",
    ]  # fmt: skip
    assert [re.sub(r"\d+\.\d", "X", line) for line in lines[5:]] == [
        "Iter #0: X img/sec per CPU",
        "Iter #1: X img/sec per CPU",
        "Img/sec per CPU: X +-X",
        "Total img/sec on 2 CPU(s): X +-X",
    ]
    each, total = numbers(r"(?:per CPU|CPU\(s\)): ([\d.]+)", run.stdout)
    assert total == pytest.approx(2 * each, abs=0.2)


@pytest.mark.soak
def test_the_gan_trains_two_networks_at_once() -> None:
    arguments = ["--steps", "160", "--report-every", "80", "--threads", "2", "--width", "64"]
    run = on_two_ranks(EXAMPLES / "gan.py", *arguments)
    distances = numbers(r"generated points are ([\d.]+) off", run.stdout)
    assert len(distances) == 3
    assert distances[-1] < 0.6 * distances[0]
    assert "the weights of 2 rank(s) are equal" in run.stdout


@pytest.mark.soak
@pytest.mark.parametrize(("backend", "model"), [("torch", "mlp"), ("tensorflow", "cnn"), ("jax", "cnn")])
def test_keras_learns_on_every_backend(tmp_path: Path, backend: str, model: str) -> None:
    result = tmp_path / "result.json"
    arguments = ["--model", model, "--samples", "2048", "--epochs", "3", "--json", str(result)]
    env = {"KERAS_BACKEND": backend}
    run = run_ranks(2, EXAMPLES / "keras_train.py", launcher="farandole", args=arguments, timeout=LIMIT_S, env=env)
    assert f"{model} on {backend}, 2 rank(s)" in run.stdout
    assert "[1]" not in run.stdout  # the display is rank 0's
    measured = json.loads(result.read_text())
    losses = measured["history"]["loss"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.more
def test_a_horovod_script_for_keras_learns(tmp_path: Path) -> None:
    run = run_ranks(
        2, EXAMPLES / "horovod_keras_script.py", launcher="farandole", timeout=LIMIT_S, cwd=tmp_path,
        env={"KERAS_BACKEND": "torch"},
    )  # fmt: skip
    assert "finished gradual learning rate warmup" in run.stdout
    (accuracy,) = numbers(r"Test accuracy: ([\d.]+)", run.stdout)
    assert accuracy > 0.85
    assert (tmp_path / "checkpoint-4.keras").exists()


def test_the_readme_s_loop_learns_on_two_ranks(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    (loop,) = [block for block in blocks if "import farandole.torch" in block]
    assert re.findall(r"# (\d+)$", loop, re.MULTILINE) == [str(number) for number in range(1, 11)]
    (tmp_path / "train.py").write_text(loop)
    run = on_two_ranks(tmp_path / "train.py")
    losses = numbers(r"\[0\] epoch \d: loss (\S+)", run.stdout)
    assert len(losses) == 3
    assert losses[-1] < 0.1 * losses[0]


def names_in_table_below(heading: str) -> set[str]:
    """The names in the first column of the first table after a heading or a line."""
    _, _, rest = MIGRATING.read_text().partition(f"\n{heading}\n")
    rows = rest.split("\n|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_migration_tables_are_true(tmp_path: Path) -> None:
    script = "import json, farandole.torch as hvd; print(json.dumps(hvd.__all__))"
    public = json.loads(alone(tmp_path, "-c", script).stdout)
    works, new = names_in_table_below("## Names that work"), names_in_table_below("New beside them:")
    operations = {"Adasum", "Average", "Max", "Min", "Product", "Sum"}
    assert works | new | operations == set(public)


@pytest.mark.soak
def test_late_gradients_converge_at_a_low_rate(tmp_path: Path) -> None:
    found = tmp_path / "late.json"
    short = ["--rates", "0.03", "--seeds", "1", "--steps", "300", "--json", str(found)]
    run = on_two_ranks(EXAMPLES / "late_gradients.py", *short)
    assert "synchronous" in run.stdout
    results = json.loads(found.read_text())
    assert [one["ksteps"] for one in results] == [0, 30, 1, -30]
    assert all(one["right"] > 0.5 for one in results), results
