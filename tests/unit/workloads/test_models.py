"""The workloads' models: exactly the published numbers of parameters, and layers that compute what they should.

Asked of a fresh interpreter, which builds the full models without memory for their weights.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")

SCRIPT = """
import json, os, random, sys, tempfile
os.environ["KERAS_BACKEND"] = "torch"
sys.modules.update(dict.fromkeys(["tensorflow", "jax"]))  # Keras would load them
import keras, numpy as np, torch
import farandole.workloads.layers
registered = [keras.saving.get_registered_object(f"farandole>{name}") for name in ("R2", "Correlation", "SignAccuracy", "LARS")]
from farandole.workloads import ArraySamples, TrainingData, find_workload
from farandole.workloads.layers import Conv1D, LocallyConnected1D, convolution_and_pool
from farandole.workloads.metrics import R2, Correlation, SignAccuracy
from farandole.workloads.parameters import ACTIVATIONS
from dataclasses import replace
from types import SimpleNamespace
from farandole.train.rank import hooks
from farandole.train.rank.hooks import Epochs, Timeout, WarmUp
from farandole.train.rank.batches import TrainingBatches
from farandole.train.rank.keras.layer_shapes import layer_shapes
from farandole.train.plan import Plan
from farandole.train.rank.keras.short_calls import shorten_calls

def built(name, features, classes=0, compiled=False, **given):
    none = ArraySamples(np.empty((0, features)))
    names = tuple(map(str, range(classes)))
    data = TrainingData(train=none, validation=none, test=none, features=features, classes=names, nbytes=0)
    known = find_workload(name).keras
    chosen = find_workload(name).parameters(**given)
    model = known.build(chosen, data)
    if compiled:
        optimizer = keras.saving.get_registered_object("farandole>LARS")(0.1) if name == "p1b3" else "sgd"
        model.compile(optimizer, known.loss or chosen.loss, metrics=known.metrics(chosen, data))
    return model

def parameters(*words, **given):
    return sum(layer.parameters for layer in layer_shapes(lambda: built(*words, **given)))

conv = dict(conv=(10, 10, 5, 10, 10, 5), pool=(10,))
found = {
    "nt3": parameters("nt3", 60483, 2),
    "p1b1 ae": parameters("p1b1", 60483),
    "p1b1 vae": parameters("p1b1", 60483, model="vae"),
    "p1b1 cvae": parameters("p1b1", 60483, 21, model="cvae"),
    "p1b2": parameters("p1b2", 28204, 10),
    "p1b3 dense": parameters("p1b3", 29532),
    "p1b3 conv": parameters("p1b3", 29532, **conv),
    "p1b3 locally connected": parameters("p1b3", 29532, locally_connected=True, **conv),
}

rng = np.random.default_rng(0)
x = rng.normal(size=(3, 41, 2)).astype("float32")
def gradients(layer, x):
    values = torch.tensor(x, requires_grad=True)
    (layer(values) ** 2).sum().backward()
    return [values.grad, layer.kernel.value.grad, layer.bias.value.grad]

for name, length in (("convolution", 41), ("long convolution", 4101)):
    long = rng.normal(size=(3, length, 2)).astype("float32")
    ours, theirs = Conv1D(4, 5, 2, activation="relu"), keras.layers.Conv1D(4, 5, 2, activation="relu")
    ours.build(long.shape), theirs.build(long.shape)
    theirs.set_weights([w + 0.1 for w in ours.get_weights()])
    ours.set_weights(theirs.get_weights())
    found[name] = float(abs(ours(long) - theirs(long)).max())
    pairs = zip(gradients(ours, long), gradients(theirs, long))
    found[f"{name}, gradients"] = max(float(abs(a - b).max() / abs(b).max()) for a, b in pairs)

for activation in ("relu", "gelu"):
    found[f"{activation} and pool"] = 0.0
    for part in (x, x[:, :, :1]):
        pooled = keras.Sequential(convolution_and_pool(Conv1D(4, 5), 3, activation))
        plain = keras.Sequential([keras.layers.Conv1D(4, 5, activation=activation), keras.layers.MaxPooling1D(3)])
        pooled.build(part.shape), plain.build(part.shape)
        plain.set_weights(pooled.get_weights())
        found[f"{activation} and pool"] += float(abs(pooled(part) - plain(part)).max())

local = LocallyConnected1D(4, 5, 2)
local.build(x.shape)
kernel, bias = [rng.normal(size=w.shape).astype("float32") for w in local.get_weights()]
local.set_weights([kernel, bias])
places = [x[:, 2 * p : 2 * p + 5].reshape(3, -1) @ kernel[p] + bias[p] for p in range(kernel.shape[0])]
found["locally connected"] = float(abs(np.stack(places, axis=1) - local(x).detach().numpy()).max())

y, p = rng.random((50, 7)).astype("float32"), rng.random((50, 7)).astype("float32")
for metric in (R2(7), Correlation(), SignAccuracy()):
    metric.update_state(y[:30] - 0.5, p[:30] - 0.5)
    metric.update_state(y[30:] - 0.5, p[30:] - 0.5)
    found[metric.name] = float(metric.result())
found["expected"] = {
    "r2": 1 - float(((y - p) ** 2).sum() / ((y - y.mean(axis=0)) ** 2).sum()),
    "correlation": float(np.corrcoef(y.ravel(), p.ravel())[0, 1]),
    "accuracy": float(((y > 0.5) == (p > 0.5)).mean()),
}

def saved_and_loaded(model, target, *inputs):
    inputs = inputs if len(inputs) > 1 else inputs[0]
    model.train_on_batch(inputs, target)
    with tempfile.TemporaryDirectory() as place:
        model.save(f"{place}/model.keras")
        again = keras.saving.load_model(f"{place}/model.keras")
    judged = [found.evaluate(inputs, target, verbose=0, return_dict=True) for found in (model, again)]
    assert judged[0] == judged[1] and type(again.optimizer) is type(model.optimizer), judged
    return float(abs(model(inputs) - again(inputs)).max())

def shortened(model):
    shorten_calls(model)
    return model

genes, types = rng.random((3, 40), dtype="float32"), np.eye(3, dtype="float32")
few = dict(conv=(3, 5, 2), pool=(2,), dense=(4,))
found["saved"] = {
    "nt3": saved_and_loaded(built("nt3", 40, 2, True, **few), types[:, :2], genes[:, :, None]),
    "nt3, shorter calls": saved_and_loaded(shortened(built("nt3", 40, 2, True, **few)), types[:, :2], genes[:, :, None]),
    "p1b1": saved_and_loaded(built("p1b1", 40, 3, True, model="cvae", dense=(8, 4)), genes, genes, types),
    "p1b3": saved_and_loaded(built("p1b3", 40, 0, True, locally_connected=True, **few), types[:, :1], genes),
}

def trained(shorten, name, target, inputs, **given):
    # The weights after two steps, a forecast, and whether Keras has called a layer in its own way.
    random.seed(3), torch.manual_seed(3)
    model, seen = built(name, 40, target.shape[1], True, **given), []
    if shorten:
        shorten_calls(model)
    model.layers[0].register_forward_pre_hook(lambda *_: seen.append(1))
    for _ in range(2):
        model.train_on_batch(inputs, target)
    return [*(w.tolist() for w in model.get_weights()), model.predict(inputs, verbose=0).tolist()], bool(seen)

found["short calls"] = {}
def compare(title, *words, **given):
    long, short = (trained(shorten, *words, **given) for shorten in (False, True))
    found["short calls"][title] = [long[0] == short[0], long[1], short[1]]

compare("nt3", "nt3", types[:, :2], genes[:, :, None], dropout=0.5, **few)
compare("p1b3", "p1b3", types[:, :1], genes, dropout=0.5, dense=(8, 4))
compare("p1b3, locally connected", "p1b3", types[:, :1], genes, locally_connected=True, **few)
compare("whole numbers", "p1b3", types[:, :1], (9 * genes).astype("int32"), dense=(8, 4))
compare("no axis of one", "nt3", types[:, :2], genes, **few)
compare("penalties on activities", "p1b2", types, genes, dense=(8, 4))
keras.config.set_dtype_policy("mixed_bfloat16")
compare("mixed precision", "nt3", types[:, :2], genes[:, :, None], **few)
keras.config.set_dtype_policy("bfloat16")
compare("short floats", "nt3", types[:, :2], genes[:, :, None], **few)
keras.config.set_dtype_policy("float32")

plan = Plan(ranks=2, passes=1, parallel="steps", epochs=1, steps=1, local_batch=10, rate=0.1, samples_per_epoch=20)
found["all registered"] = None not in registered
found["activations"] = [keras.activations.get(name)(np.zeros((2, 3), "float32")).shape == (2, 3) for name in ACTIVATIONS]

trainer = SimpleNamespace(rate=0.1, stop=lambda: stopped.append(True))
warmup, found["warm-up"] = WarmUp(plan, trainer, 1, "sqrt"), []
for epoch in (0, 1):
    warmup.begin_epoch(epoch)
    warmup.begin_batch(0)
    found["warm-up"].append(trainer.rate)

hooks.broadcast_object = lambda value, root, name: value
found["timeout"], notes = [], []
for seconds, epochs in ((-1, 4), (-1, 2), (1000, 4)):
    stopped = []
    Timeout(replace(plan, epochs=epochs), trainer, seconds, notes.append).end_epoch(1, {})
    found["timeout"].append([bool(stopped), *notes])
    notes.clear()

class OwnSamples:
    __len__ = lambda self: 20
    batch = lambda self, rows: (genes[rows % 3], types[rows % 3])

own = TrainingBatches(OwnSamples(), plan, seed=1, shuffle=False, rank=0, size=2)
found["own samples"] = [own.at_hand, own[0][0].shape == (10, 40)]

def epochs(passes, batches):
    done = Epochs(replace(plan, passes=passes), trainer, SimpleNamespace(), None, None, None)
    done.begin_epoch(0)
    for batch in batches:
        done.end_batch(batch, 0.0)
    return done

first, second, other = epochs(2, range(5)), epochs(2, []), epochs(1, range(3))
first_s = list(first.steps)
for later in (second, other):
    later.load_state_dict(first.state_dict())
first.passing = lambda: True
first.begin_epoch(0)
first.end_batch(0, 0.0)
first.passing = lambda: False
first.end_batch(1, 0.0)
found["steps"] = [len(first_s), first.steps == first_s, second.steps == first_s, len(other.steps)]
print(json.dumps(found))
"""

PARAMETERS = {
    "nt3": 154_922_918,
    "p1b1 ae": 244_400_085,
    "p1b1 vae": 244_401_287,
    "p1b1 cvae": 244_401_287 + 2_600 * 21,
    "p1b2": 29_540_618,
    "p1b3 dense": 30_088_701,
    "p1b3 conv": 1_231,
    "p1b3 locally connected": 767_831,
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("model", PARAMETERS)
def test_parameters_as_published(found: dict[str, Any], model: str) -> None:
    assert found[model] == PARAMETERS[model]


LAYERS = [
    "convolution", "convolution, gradients", "long convolution", "long convolution, gradients", "relu and pool", "gelu and pool",
    "locally connected",
]  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_compute_what_they_should(found: dict[str, Any], layer: str) -> None:
    assert found[layer] < 1e-5


def test_shorter_calls_train_the_same(found: dict[str, Any]) -> None:
    same, shortened, left = True, [True, False], [True, True]
    assert found["short calls"] == {
        "nt3": [same, *shortened],
        "p1b3": [same, *shortened],
        "p1b3, locally connected": [same, *shortened],
        "whole numbers": [same, *left],
        "no axis of one": [same, *left],
        "short floats": [same, *left],
        "penalties on activities": [same, *left],
        "mixed precision": [same, *left],
    }


def test_samples_of_ones_own_need_a_length_and_batches(found: dict[str, Any]) -> None:
    assert found["own samples"] == [False, True]


@pytest.mark.parametrize("metric", ["r2", "correlation", "accuracy"])
def test_metrics_over_several_batches(found: dict[str, Any], metric: str) -> None:
    assert found[metric] == pytest.approx(found["expected"][metric], abs=1e-5)


def test_keras_has_every_activation_that_is_allowed(found: dict[str, Any]) -> None:
    assert all(found["activations"])


def test_warm_up_begins_with_the_rate_of_one_rank(found: dict[str, Any]) -> None:
    assert found["warm-up"] == pytest.approx([0.1 / 2**0.5, 0.1])


def test_a_timeout_that_ends_training_leaves_a_note(found: dict[str, Any]) -> None:
    ended = [True, "timeout=-1: training ended after 2 of 4 epochs"]
    assert found["timeout"] == [ended, [True], [False]], "in the last epoch nothing is cut off"


def test_steps_of_all_parts_of_a_run_are_timed(found: dict[str, Any]) -> None:
    assert found["steps"] == [2, True, True, 3], "of two batches each; not one that a part before has begun, nor those of another plan"


@pytest.mark.parametrize("model", ["nt3", "nt3, shorter calls", "p1b1", "p1b3"])
def test_saved_models_are_the_same_when_loaded(found: dict[str, Any], model: str) -> None:
    assert found["saved"][model] == 0
    assert found["all registered"], "by the import that docs/benchmarks.md names"
