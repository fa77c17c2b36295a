"""Memory that is estimated before a run: layers without weights, the formula, and what is refused.

Asked of fresh interpreters, one for each framework, which see the papers' full networks without memory for their weights.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

from farandole.train.rank.memory_estimate import (
    DataBytes,
    LayerShape,
    MemoryEstimate,
    estimate_memory,
    process_bytes,
)

SCRIPT = """
import json, sys
import keras
import numpy as np
from farandole.workloads import ArraySamples, TrainingData
from farandole.errors import SettingsError
from farandole.train.rank.keras.layer_shapes import layer_shapes
from farandole.train.rank.memory_check import check_before_loading, check_training
from farandole.train.rank.memory_estimate import process_bytes
from farandole.train.settings import RunSettings

def network():
    inner = keras.Sequential([keras.Input((30,)), keras.layers.Dense(20), keras.layers.Dropout(0.5)])
    image = keras.Input((8, 8, 3))
    values = keras.layers.Flatten()(keras.layers.Conv2D(4, 3)(image))
    return keras.Model(image, keras.layers.Concatenate()([inner(keras.layers.Dense(30)(values)), values]))

class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.inside = keras.layers.Dense(3)

layers = layer_shapes(network)
found = {
    "any": {layer.name.rstrip("_0123456789"): [layer.parameters, layer.inputs, layer.outputs, layer.kept] for layer in layers},
    "as built": [sum(layer.parameters for layer in layers), network().count_params()],
    "unbuilt": [layer.parameters for layer in layer_shapes(Unbuilt)],
}

def refused(action):
    try:
        action()
    except SettingsError as error:
        return str(error)

shapes = {"train": (1120, 60483), "test": (280, 60483)}
def needs(free, text=10**9, size=2, preset="paper", **given):
    told = {"benchmark": "nt3", "preset": preset, "make_data": True, "epochs": 4, "framework": keras.backend.backend()}
    settings = RunSettings.from_flat(told | given)
    return check_before_loading(settings, shapes, text, size=size, local_size=size, share=free)

before, name = process_bytes(), keras.layers.Dense(1).name
for _ in range(3):
    needed = needs(2**40)
with keras.StatelessScope():
    pass  # where Keras makes up for values that are missing
found["grown"] = process_bytes() - before
found["names"] = [name, keras.layers.Dense(1).name]
found["needs"] = [needed.data_bytes, needed.needed_bytes, needed.peak_bytes - before, needed.largest_phase]
found["cut"] = [needs(2**40, size=1, feature_subsample=2000, dense=[5]).largest_phase, needs(2**40, 0, 1).largest_phase]
found["more"] = [needs(2**40, size=size, **given).needed_bytes for size, given in (
    (1, {}), (1, {"optimizer": "adam"}), (1, {"batch_size": 40}), (1, {"emulate_ranks": 2}), (2, {}))]
found["too little"] = [refused(lambda: needs(free)) for free in (2**26, 2**28, 2**30)]
found["read before"] = refused(lambda: needs(2**26, 0))
largest = refused(lambda: needs(12 * 2**30, batch_size=1000))
found["largest"] = [largest, int(largest.partition("batch_size of at most ")[2].partition(",")[0])]
found["fits"] = [refused(lambda: needs(12 * 2**30, batch_size=found["largest"][1] + more)) is None for more in (0, 1)]

none = ArraySamples(np.empty((0, 60483, 1)))
data = TrainingData(train=none, validation=none, test=none, features=60483, classes=("",) * 2, nbytes=2**30)
paper = RunSettings.from_flat({"benchmark": "nt3", "preset": "paper", "make_data": True, "framework": keras.backend.backend()})
found["own arrays"] = refused(lambda: check_training(paper, data, size=1, share=2**31))
print(json.dumps(found))
"""

NT3 = 4 * 154_922_918


def framework(name: str, *marks: Any) -> Any:
    missing = pytest.mark.skipif(find_spec("keras") is None or find_spec(name) is None, reason=f"no Keras on {name}")
    return pytest.param(name, marks=[missing, *marks])


@pytest.fixture(scope="module", params=[framework("torch"), framework("tensorflow", pytest.mark.more), framework("jax", pytest.mark.more)])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    environment = os.environ | {"KERAS_BACKEND": request.param}
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=150, env=environment)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told


def test_any_keras_model_has_shapes(found: dict[str, Any]) -> None:
    expected = {
        "input_layer": [0, 0, 192, 192],
        "conv2d": [112, 192, 144, 144],
        "flatten": [0, 144, 144, 0],
        "dense": [620, 30, 20, 20],
        "dropout": [0, 20, 20, 40],
        "concatenate": [0, 164, 164, 164],
    }
    assert {name: found["any"][name] for name in expected} == expected
    assert found["as built"][0] == found["as built"][1] and found["unbuilt"] == [0]


def test_shapes_leave_nothing_behind(found: dict[str, Any]) -> None:
    assert found["grown"] < 64 << 20, "the weights alone take 591 MiB"
    before, after = (int(name.removeprefix("dense_")) for name in found["names"])
    assert after == before + 1, "checkpoints know layers by name"


def test_what_a_run_needs_is_known_before_it_loads(found: dict[str, Any]) -> None:
    data_bytes, needed_bytes, added_bytes, phase = found["needs"]
    assert data_bytes == 4 * 1400 * 60483 and phase == "train"
    assert 6e9 < needed_bytes < 10e9 and added_bytes == pytest.approx(needed_bytes, rel=0.02)
    assert found["cut"] == ["load", "train"], "a small network on a few features; text that was parsed before"


def test_more_of_anything_needs_more(found: dict[str, Any]) -> None:
    plain, adam, batch, emulated, ranks = found["more"]
    assert adam - plain >= 3.99 * NT3
    assert [emulated - plain, ranks - plain] == pytest.approx([NT3, 2 * NT3], rel=1e-3)
    assert batch - plain > 20 * 4 * 2 * 60_000 * 128, "20 samples more, of two convolutions"


def test_what_does_not_fit_is_refused(found: dict[str, Any]) -> None:
    table, weights, training = found["too little"]
    assert table.startswith("nt_train2.csv cannot be read: about 1,120 rows of 60,483 numbers take 0.3 GiB, and 0.1 GiB are free on the node.")
    assert weights == found["read before"].replace("0.1 GiB", "0.2 GiB")
    assert weights.startswith("weights of 0.6 GiB, up to 773,760 x 200 of layer dense, cannot fit: 0.2 GiB are free for each rank")
    assert ", 0.3 GiB of it data, cannot fit: 1.0 GiB are free for each rank" in training
    assert "fewer ranks on a node, fewer features (feature_subsample), or an optimizer" in training
    assert "data" not in found["own arrays"], "those are loaded already"


def test_the_largest_batch_that_fits_is_named(found: dict[str, Any]) -> None:
    text, largest = found["largest"]
    assert "feature_subsample), a batch_size of at most " in text and 20 < largest < 1000
    assert found["fits"] == [True, False]


def estimated(*, slots: int = 0, passes: int = 1, ranks: int = 1, framework: str = "jax", batch: int = 0) -> MemoryEstimate:
    layers = [
        LayerShape(name="dense", weights=((30, 20), (20,)), inputs=30, outputs=20, kept=20),
        LayerShape(name="dense_1", weights=((20, 1), (1,)), inputs=20, outputs=1, kept=1),
    ]
    return estimate_memory(
        layers, framework=framework, slots=slots, local_batch=batch, passes=passes, ranks=ranks, data=DataBytes()
    )


def test_the_formula_is_the_documented_one() -> None:
    weights, largest = 641, 620
    plain = estimated().needed_bytes
    assert estimated(slots=2).needed_bytes - plain == 4 * 2 * 2 * weights
    assert estimated(passes=3).needed_bytes - plain == 4 * weights
    assert (estimated(ranks=3).needed_bytes - plain) % (1 << 20) == 4 * 2 * weights, "beside code"
    assert estimated(batch=7).needed_bytes - plain == 4 * 7 * (30 + 21 + 2 * 50)
    assert (plain - 4 * (3 * weights + largest)) % (1 << 20) == 0, "what is left is the framework's code"
    on_torch = {slots: estimated(slots=slots, framework="torch").needed_bytes for slots in (0, 2)}
    assert on_torch[2] - on_torch[0] == 4 * 3 * 2 * weights


def test_this_process_counts_in() -> None:
    found = estimated()
    assert 0 < process_bytes() <= found.peak_bytes
    assert found.peak_bytes - found.needed_bytes == pytest.approx(process_bytes(), rel=0.1)
