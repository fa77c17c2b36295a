"""The test presets learn what simpler models cannot, and two ranks learn it as well as one.

Baselines see the same arrays. `-s` shows the figures.
"""

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.make import make
from farandole.workloads import find_workload
from farandole.workloads.finding import tables_of

linear_model = pytest.importorskip("sklearn.linear_model")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]

SEEDS = (1, 2, 3)


PLACE: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where data and runs are kept for all tests of this file."""
    PLACE.append(tmp_path_factory.mktemp("candle"))


@cache
def folder(name: str) -> Path:
    make(tables_of(name), PLACE[0] / name, preset="test")
    return PLACE[0] / name


@cache
def trained(name: str, ranks: int, seed: int) -> dict[str, Any]:
    """What `farandole run` says of the preset."""
    out = folder(name)
    words = ["run", name, "-n", str(ranks), "--preset", "test", "--data-dir", str(out), "--rng_seed", str(seed)]
    run = subprocess.run(
        [sys.executable, "-m", "farandole", *words, "--json", "--output-dir", str(out / f"{ranks}-{seed}")],
        capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    record: dict[str, Any] = json.loads(run.stdout)
    return record


def scores(name: str, ranks: int, part: str, metric: str) -> list[float]:
    return [trained(name, ranks, seed)["final"][part][metric] for seed in SEEDS]


def parts(name: str) -> Any:
    known = find_workload(name)
    return known.load(known.parameters(**known.presets["test"]), folder(name))


def every(samples: Any) -> tuple[Any, Any]:
    x, y = samples.batch(np.arange(len(samples)))
    return x.reshape(len(x), -1), y


def linear_accuracy(name: str, strength: float) -> float:
    data = parts(name)
    (x, y), (x_test, y_test) = every(data.train), every(data.test)
    model = linear_model.LogisticRegression(C=strength, max_iter=200, tol=1e-3).fit(x, y.argmax(axis=1))
    return float(model.score(x_test, y_test.argmax(axis=1)))


def test_nt3_beats_a_linear_model() -> None:
    linear = max(linear_accuracy("nt3", strength) for strength in (0.1, 1.0))
    found = scores("nt3", 1, "test", "accuracy")
    print(f"nt3: logistic regression {linear:.3f}, network {found}")
    assert np.mean(found) >= 0.95 > linear + 0.05


def test_p1b1_beats_principal_components() -> None:
    data = parts("p1b1")
    x, x_test = every(data.train)[0], every(data.test)[0]
    mean = x.mean(axis=0)
    axes = np.linalg.svd(x - mean, full_matrices=False)[2][:2]
    flat = float(np.corrcoef(x_test.ravel(), ((x_test - mean) @ axes.T @ axes + mean).ravel())[0, 1])
    found = scores("p1b1", 1, "test", "correlation")
    print(f"p1b1: principal components {flat:.4f}, autoencoder {found}")
    assert np.mean(found) > flat + 0.01


def test_p1b2_beats_the_majority_and_a_linear_model() -> None:
    labels = every(parts("p1b2").test)[1]
    majority, linear = float(labels.mean(axis=0).max()), linear_accuracy("p1b2", 0.01)
    found = scores("p1b2", 1, "test", "accuracy")
    print(f"p1b2: majority {majority:.3f}, logistic regression {linear:.3f}, network {found}")
    assert np.mean(found) > max(majority, linear) + 0.08


def test_p1b3_beats_the_means_of_cell_and_drug() -> None:
    growth = parts("p1b3")
    data, train, held = growth.train.data, growth.train.rows, growth.validation.rows
    guess = np.full(len(data.growth), data.growth[train].mean(), np.float64)
    doses = np.unique(data.log_concentration, return_inverse=True)[1]
    for index in (doses, data.cell_of, data.drug_of) * 4:
        left = np.bincount(index[train], (data.growth - guess)[train], index.max() + 1)
        guess += (left / np.maximum(1, np.bincount(index[train], minlength=index.max() + 1)))[index]
    y = data.growth[held]
    means = float(1 - ((y - guess[held]) ** 2).mean() / y.var())
    found = scores("p1b3", 1, "validation", "r2")
    print(f"p1b3: means {means:.3f}, network {found}")
    assert np.mean(found) > means + 0.05


@pytest.mark.parametrize(
    ("name", "metric", "noise"),
    [("nt3", "accuracy", 0.04), ("p1b1", "correlation", 0.01), ("p1b2", "accuracy", 0.06), ("p1b3", "r2", 0.08)],
)
def test_two_ranks_learn_as_well_as_one(name: str, metric: str, noise: float) -> None:
    one, two = (scores(name, ranks, "validation", metric) for ranks in (1, 2))
    print(f"{name}: {metric} on one rank {one}, on two {two}")
    assert abs(np.mean(two) - np.mean(one)) < noise
