"""`emulate_ranks=N` trains the weights that N ranks train: the same batches, the same dropout, the same rates.

What remains is rounding: one adds gradients up where the other reduces them. Smooth activations keep it from growing.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farandole.data.make import make
from farandole.workloads.finding import tables_of

TOLERANCE = 2e-5
ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}

NT3 = {
    "benchmark": "nt3", "conv": [4, 5, 1, 4, 3, 1], "pool": [1, 4], "dense": [8, 6], "activation": "tanh",
    "epochs": 12, "batch_size": 25, "dropout": 0.25, "learning_rate": 0.05, "reduce_lr": False, "warmup_epochs": 2,
}  # fmt: skip
VAE = {
    "benchmark": "p1b1", "model": "vae", "dense": [12, 8], "activation": "tanh", "epochs": 2, "batch_size": 7,
    "parallel": "steps",
}  # fmt: skip
P1B2 = {"benchmark": "p1b2", "dense": [12, 8], "epochs": 12, "batch_size": 8, "dropout": 0.25, "learning_rate": 0.01}
# Ranks' last batches are not alike: 3 do not divide the samples, nor does the batch.
P1B3 = {
    "benchmark": "p1b3", "dense": [12, 8], "activation": "tanh", "epochs": 2, "batch_size": 30, "dropout": 0.25,
    "learning_rate": 0.05, "val_steps": 1,
}  # fmt: skip
SIZES = {"nt3": (50, 60), "p1b1": (50, 20), "p1b2": (30, 160), "p1b3": (2000, 20)}
"""Rows and features of each benchmark's files."""

# JAX compiles for longer than it trains: one of them is enough.
WORKLOADS = {"torch": (NT3, VAE, P1B2, P1B3), "tensorflow": (NT3, VAE, P1B2, P1B3), "jax": (NT3,)}


def train(hvd: Any, folder: str, framework: str, as_many: list[int]) -> dict[str, Any]:
    """Weights and metrics of each run, by its name, on the ranks there are; as others where `as_many` says so."""
    wanted = {
        f"{given['benchmark']} as {ranks}": given | emulated(hvd, ranks)
        for ranks in as_many
        for given in WORKLOADS[framework]
    }
    if hvd.size() == 1 and framework == "torch":
        # Half the epochs at the same rate: what two ranks would be if both did the same.
        wanted["a copy"] = {**NT3, "epochs": 6, "learning_rate": 0.1, "warmup_epochs": 0}
    return {name: outcome(hvd, folder, framework, given) for name, given in wanted.items()}


def train_together_and_alone(hvd: Any, folder: str) -> dict[str, Any]:
    """Two ranks train both; then each trains one of them, as two."""
    from mpi4py import MPI

    both, rank = (P1B2, P1B3), hvd.rank()
    found = {given["benchmark"]: outcome(hvd, folder, "torch", given) for given in both}
    hvd.shutdown()
    hvd.init(MPI.COMM_SELF)
    found["alone"] = outcome(hvd, folder, "torch", both[rank] | emulated(hvd, 2))
    hvd.shutdown()
    hvd.init()
    return found


def emulated(hvd: Any, ranks: int) -> dict[str, int]:
    return {} if ranks == hvd.size() else {"emulate_ranks": ranks}


def outcome(hvd: Any, folder: str, framework: str, given: dict[str, Any]) -> dict[str, Any]:
    import keras
    import numpy as np

    from farandole.train.rank.progress import RunLog
    from farandole.train.rank.session import run_on_rank
    from farandole.train.settings import RunSettings

    own = f"{folder}/{given['benchmark']}"
    place = {"data_dir": own, "output_dir": own, "framework": framework}
    result = run_on_rank(RunSettings.from_flat(place | given), RunLog(None), began=0.0)
    assert len({rank.host for rank in result.ranks}) == 1 and len(result.ranks) == hvd.size()
    if hvd.rank() != 0:
        return {}
    model = keras.saving.load_model(f"{own}/model.keras", compile=False)
    weights = np.concatenate([array.ravel() for array in model.get_weights()]).tolist()
    return {"weights": weights, "metrics": result.epochs[-1].metrics, "test": result.test}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    for name, (rows, features) in SIZES.items():
        make(tables_of(name), out / name, rows=rows, features=features, threads=1)
    return out


def same(real: dict[str, Any], emulated: dict[str, Any]) -> None:
    assert emulated["weights"] == pytest.approx(real["weights"], abs=TOLERANCE)
    for part in ("metrics", "test"):
        assert emulated[part] == pytest.approx(real[part], abs=1e-4)


def runs(ranks: Any, folder: Path, framework: str, n: int, as_many: list[int]) -> dict[str, Any]:
    env = {**ENV, "KERAS_BACKEND": framework}
    found: dict[str, Any] = ranks(n, train, str(folder), framework, as_many, door="keras", env=env, timeout=280)[0]
    return found


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(abs(a - b) for a, b in zip(one["weights"], other["weights"]))


@pytest.mark.more
def test_one_rank_as_two(ranks: Any, folder: Path) -> None:
    env = {**ENV, "KERAS_BACKEND": "torch"}
    first, second = ranks(2, train_together_and_alone, str(folder), door="keras", env=env, timeout=120)
    same(first["p1b2"], first["alone"])
    same(first["p1b3"], second["alone"])


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_on_torch(ranks: Any, folder: Path) -> None:
    emulated = runs(ranks, folder, "torch", 1, [2, 3, 4])
    two = runs(ranks, folder, "torch", 2, [2, 4])
    real = {2: two, 3: runs(ranks, folder, "torch", 3, [3]), 4: runs(ranks, folder, "torch", 4, [4])}
    for name in SIZES:
        for count in (2, 3, 4):
            same(real[count][f"{name} as {count}"], emulated[f"{name} as {count}"])
        same(real[4][f"{name} as 4"], two[f"{name} as 4"])
        assert apart(real[2][f"{name} as 2"], emulated[f"{name} as 3"]) > 100 * TOLERANCE, "any number of ranks trains these"
    assert apart(two["nt3 as 2"], emulated["a copy"]) > 100 * TOLERANCE, "two ranks are two copies of one"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_on_other_frameworks(ranks: Any, folder: Path, framework: str) -> None:
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    emulated = runs(ranks, folder, framework, 1, [2])
    real = runs(ranks, folder, framework, 2, [2])
    for name in real:
        same(real[name], emulated[name])
