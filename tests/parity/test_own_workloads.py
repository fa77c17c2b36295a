"""A user's workload trains as its model does by hand, and a run that is killed ends with the same weights."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dying import AT_SECOND_CHECKPOINT
from repository import ROOT

EPOCHS, STEPS = 3, 9
"""Of full batches on every number of ranks: a mean over ranks is then one over samples."""
OPTIONS = ["--threads", "1", "--epochs", str(EPOCHS), "--train_steps", str(STEPS), "--shuffle", "False", "--no-page"]
LIMIT_S = 150

BY_HAND = """
import importlib.util, json, os, random, sys
from pathlib import Path
import numpy as np

file, out, ranks, epochs, steps = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
spec = importlib.util.spec_from_file_location("example", file)
example = importlib.util.module_from_spec(spec)
sys.modules["example"] = example
spec.loader.exec_module(example)
settings = example.Settings()
data = example.load(settings, Path("."))
x, y, size = data.train.x, data.train.y, settings.batch_size
rate = settings.learning_rate * ranks

def batches():
    for _ in range(epochs):
        for step in range(steps):
            rows = np.concatenate([np.arange(len(x))[rank::ranks][step * size : (step + 1) * size] for rank in range(ranks)])
            yield x[rows], y[rows]

def torch_weights():
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(settings.rng_seed)
    model = example.build(settings, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for inputs, targets in batches():
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(inputs)), torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach().numpy() for p in model.parameters()]

def keras_weights():
    import keras, torch
    torch.set_num_threads(1)
    random.seed(settings.rng_seed)  # of which Keras draws its seeds
    model = example.build(settings, data)
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy")
    for inputs, targets in batches():
        model.train_on_batch(inputs, targets)
    return model.get_weights()

np.savez(out, *(keras_weights() if "keras" in file.name else torch_weights()))
"""


def ran(words: list[str], folder: Path, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        env=os.environ | {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"} | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def example(api: str) -> Path:
    return ROOT / "examples" / f"own_workload_{api}.py"


def weights_of_run(api: str, folder: Path) -> list[Any]:
    if api == "torch":
        torch = pytest.importorskip("torch")
        return [tensor.numpy() for tensor in torch.load(folder / "model.pt").values()]
    ran(["-c", "import keras, numpy as np; np.savez('again.npz', *keras.saving.load_model('model.keras').get_weights())"], folder)
    with np.load(folder / "again.npz") as saved:
        return [saved[name] for name in saved]


def everywhere(n: int, api: str) -> Any:
    marks = [] if api == "torch" or n == 2 else [pytest.mark.more]
    missing = pytest.mark.skipif(find_spec(api) is None, reason=f"{api} is not installed")
    return pytest.param(api, n, marks=[missing, *marks], id=f"{api}-n{n}")


APIS = ("torch", "keras")
Run = Callable[[str, int], Path]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made: dict[tuple[str, int], Path] = {}

    def folder(api: str, n: int) -> Path:
        if (api, n) not in made:
            made[api, n] = place = tmp_path_factory.mktemp(f"{api}{n}")
            ran(["-m", "farandole", "run", str(example(api)), "-n", str(n), *OPTIONS, "--output-dir", "here"], place)
        return made[api, n] / "here"

    return folder


@pytest.mark.parametrize(("api", "n"), [everywhere(n, api) for api in APIS for n in (1, 2, 3)])
def test_it_is_the_model_trained_by_hand(tmp_path: Path, undisturbed: Run, api: str, n: int) -> None:
    found = weights_of_run(api, undisturbed(api, n))
    ran(["-c", BY_HAND, str(example(api)), "hand.npz", str(n), str(EPOCHS), str(STEPS)], tmp_path)
    with np.load(tmp_path / "hand.npz") as saved:
        by_hand = [saved[name] for name in saved]
    assert len(found) == len(by_hand)
    for ours, theirs in zip(found, by_hand):
        if n == 1 and api == "torch":
            assert np.array_equal(ours, theirs)
        else:  # rounded in another order: means of ranks' means, and Keras' convolutions without its copies
            np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize(("api", "n"), [everywhere(n, api) for api in APIS for n in (1, 2, 3)])
def test_killed_and_resumed_it_ends_with_the_same_weights(tmp_path: Path, undisturbed: Run, api: str, n: int) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_SECOND_CHECKPOINT)
    words = ["-m", "farandole", "run", str(example(api)), "-n", str(n), *OPTIONS, "--checkpoint-every", "4steps", "--restarts", "1"]
    said = ran([*words, "--output-dir", "here"], tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}")
    assert "starting again (1 of 1 restarts)" in said
    expected, record = (json.loads((folder / "run.json").read_text()) for folder in (undisturbed(api, n), tmp_path / "here"))
    assert record["weights"] == expected["weights"]
    for ours, theirs in zip(record["epochs"], expected["epochs"], strict=True):
        assert {name: ours[name] for name in ("loss", "accuracy", "val_loss")} == {name: theirs[name] for name in ("loss", "accuracy", "val_loss")}
    assert record["checkpoints"]["resumed_from"].endswith("step-8")
