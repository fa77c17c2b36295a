"""`emulate_ranks=N` trains the weights that N ranks train: the same batches, the same dropout, the same rates.

What remains is rounding: one adds gradients up where the other reduces them. Smooth activations keep it from growing.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farandole.data.make import make

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


# JAX compiles for longer than it trains: one of the two is enough.
WORKLOADS = {"torch": (NT3, VAE), "tensorflow": (NT3, VAE), "jax": (NT3,)}


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


def emulated(hvd: Any, ranks: int) -> dict[str, int]:
    return {} if ranks == hvd.size() else {"emulate_ranks": ranks}


def outcome(hvd: Any, folder: str, framework: str, given: dict[str, Any]) -> dict[str, Any]:
    import keras
    import numpy as np

    from farandole.train.progress import Teller
    from farandole.train.session import run_on_rank
    from farandole.train.settings import RunSettings

    place = {"data_dir": f"{folder}/{given['benchmark']}", "output_dir": folder, "framework": framework}
    result = run_on_rank(RunSettings.from_flat(place | given), Teller(None), began=0.0)
    assert len({rank.host for rank in result.ranks}) == 1 and len(result.ranks) == hvd.size()
    if hvd.rank() != 0:
        return {}
    model = keras.saving.load_model(f"{folder}/model.keras", compile=False)
    weights = np.concatenate([array.ravel() for array in model.get_weights()]).tolist()
    return {"weights": weights, "metrics": result.epochs[-1].metrics, "test": result.test}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    make("nt3", out / "nt3", rows=50, features=60, threads=1)
    make("p1b1", out / "p1b1", rows=50, features=20, threads=1)
    return out


def same(real: dict[str, Any], emulated: dict[str, Any]) -> None:
    assert emulated["weights"] == pytest.approx(real["weights"], abs=TOLERANCE)
    for part in ("metrics", "test"):
        assert emulated[part] == pytest.approx(real[part], abs=1e-4)


def runs(ranks: Any, folder: Path, framework: str, n: int, as_many: list[int]) -> dict[str, Any]:
    env = {**ENV, "KERAS_BACKEND": framework}
    found: dict[str, Any] = ranks(n, train, str(folder), framework, as_many, door="keras", env=env, timeout=280)[0]
    return found


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_on_torch(ranks: Any, folder: Path) -> None:
    emulated = runs(ranks, folder, "torch", 1, [2, 3, 4])
    two = runs(ranks, folder, "torch", 2, [2, 4])
    real = {2: two, 3: runs(ranks, folder, "torch", 3, [3]), 4: runs(ranks, folder, "torch", 4, [4])}
    for name in ("nt3", "p1b1"):
        for count in (2, 3, 4):
            same(real[count][f"{name} as {count}"], emulated[f"{name} as {count}"])
        same(real[4][f"{name} as 4"], two[f"{name} as 4"])
    copy = emulated["a copy"]["weights"]
    apart = max(abs(a - b) for a, b in zip(two["nt3 as 2"]["weights"], copy))
    assert apart > 100 * TOLERANCE, "two ranks are two copies of one"


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
