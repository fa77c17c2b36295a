"""The CNNs and GPT-2: exactly the published numbers of parameters, and the same values from torch's and Keras' form of one description.

Asked of fresh interpreters, which build the full networks without memory for their weights.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

HAS_TORCH, HAS_KERAS = find_spec("torch") is not None, find_spec("keras") is not None
pytestmark = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

CIFAR = ("resnet8", "resnet20", "resnet110", "resnet1001")

ON_TORCH = """
import json, warnings, torch
warnings.simplefilter("ignore")  # of starting values for what has no memory
from farandole.workloads.cnn import NETS
from farandole.workloads.cnn.on_torch import network

def built(name, classes, side):
    with torch.device("meta"):
        return network(name, classes, side)

counts = {name: sum(p.numel() for p in built(name, net.classes, net.image_size).parameters()) for name, net in NETS.items()}
counts["resnet50 1001"] = sum(p.numel() for p in built("resnet50", 1001, 224).parameters())

from farandole.workloads.gpt2 import Gpt2
from farandole.workloads.gpt2.model import GPT2
with torch.device("meta"):
    counts["gpt2-small"] = sum(p.numel() for p in GPT2(Gpt2()).parameters())

from farandole.workloads.cnn.resnet import MODELS, resnet18
counts |= {name: sum(p.numel() for p in MODELS[name]().parameters()) for name in ("resnet18", "resnet34")}
names = built("resnet50", 1000, 224).state_dict()
likes = [len(names), "layer4.0.downsample.1.running_var" in names, list(resnet18().eval()(torch.zeros(2, 3, 64, 64)).shape)]

def works(name, side):
    try:
        with torch.device("meta"):
            return list(network(name, 7, side)(torch.empty(2, 3, side, side)).shape) == [2, 7]
    except RuntimeError:
        return False

deep = ("resnet110", "resnet1001", "resnet101", "resnet152")
print(json.dumps([counts, [name for name, net in NETS.items() if name not in deep and not works(name, net.least)],
                  [name for name in ("inception_v3", "inception_v4", "vgg16", "alexnet") if works(name, NETS[name].least - 1)], likes]))
"""

ON_KERAS = """
import json, os, sys, tempfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
os.environ["KERAS_BACKEND"] = "torch"
sys.modules.update(dict.fromkeys(["tensorflow", "jax"]))  # Keras would load them
import keras, numpy as np, torch
from farandole.workloads import ArraySamples, TrainingData
from farandole.workloads.cnn import NETS, Cnn, on_keras, on_torch, nets

none = ArraySamples(np.empty((0, 1), np.float32))
data = TrainingData(train=none, test=none)

def counts(name):
    def count():
        with keras.StatelessScope(initialize_variables=False):
            model = on_keras.build(Cnn(model=name, classes=NETS[name].classes), data)
            return [sum(int(np.prod(w.shape)) for w in weights) for weights in (model.trainable_weights, model.weights)]
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(count).result()

def furthest(name, side):
    # between the outputs of both forms, with the same weights
    net = on_torch.network(name, 5, side).eval()
    model = on_keras.build(SimpleNamespace(model=name, classes=5, side=side), data)
    random = np.random.default_rng(0)
    for kinds, kind in (((torch.nn.Conv2d,), keras.layers.Conv2D), ((torch.nn.BatchNorm2d,), keras.layers.BatchNormalization),
                        ((torch.nn.Linear,), keras.layers.Dense)):
        theirs = [module for module in net.modules() if isinstance(module, kinds)]
        ours = [layer for layer in model.layers if type(layer) is kind]
        ours.sort(key=lambda layer: int(layer.name.rsplit("_", 1)[1]) if layer.name not in ("conv2d", "batch_normalization", "dense") else 0)
        assert len(theirs) == len(ours), (name, kind)
        for module, layer in zip(theirs, ours):
            weights = [random.normal(1 if number in (0, 3) and kind is keras.layers.BatchNormalization else 0, 0.1, w.shape) ** (2 if number == 3 else 1)
                       for number, w in enumerate(layer.weights)]
            layer.set_weights(weights)
            weights = [torch.tensor(w, dtype=torch.float32) for w in weights]
            if kind is keras.layers.BatchNormalization:
                module.load_state_dict(dict(zip(("weight", "bias", "running_mean", "running_var"), weights)), strict=False)
                continue
            module.weight.data = weights[0].permute(3, 2, 0, 1) if kind is keras.layers.Conv2D else weights[0].T
            if len(weights) > 1:
                module.bias.data = weights[1]
    images = random.normal(size=(2, side, side, 3)).astype(np.float32)
    with torch.no_grad():
        wanted = net(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    found = keras.ops.convert_to_numpy(model(images, training=False))
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())

nets.TREES["short v2"] = nets._cifar_v2(1)
def saved_and_loaded(name, side):
    model = on_keras.build(Cnn(model=name, classes=3, image_size=side), data)
    model.compile("sgd", on_keras.loss, metrics=on_keras.metrics(None, data))
    images = np.random.default_rng(0).normal(size=(2, side, side, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        again = keras.models.load_model(f"{folder}/model.keras")
    return again.loss.from_logits and bool(np.array_equal(model.predict(images, verbose=0), again.predict(images, verbose=0)))

assert saved_and_loaded("resnet8", 8)
print(json.dumps([{name: counts(name) for name in NETS},
                  {name: furthest(name, side) for name, side in (("resnet8", 16), ("short v2", 16), ("inception_v1", 32))}]))
"""


def answer(script: str) -> Any:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_torch_modules_have_the_published_parameters() -> None:
    counts, too_small, not_too_small, names = answer(ON_TORCH)
    assert counts == {
        "resnet50": 25_557_032, "resnet101": 44_549_160, "resnet152": 60_192_808,  # torchvision
        "inception_v1": 6_998_552, "inception_v3": 23_834_568, "inception_v4": 42_679_816,  # paper; torchvision, without aux; timm
        "vgg_a": 132_863_336, "vgg16": 138_357_544, "vgg19": 143_667_240, "alexnet": 61_100_840,  # torchvision
        "resnet8": 75_290, "resnet20": 269_722, "resnet110": 1_727_962, "resnet1001": 10_327_706,  # He 2015 (option A), He 2016
        "resnet18": 11_689_512, "resnet34": 21_797_672,  # torchvision, of the examples
        "resnet50 1001": 25_559_081,  # of Cray's paper: with a class for the background
        "gpt2-small": 124_439_808,  # OpenAI
    }  # fmt: skip
    assert too_small == [], "works with images of the least size"
    assert not_too_small == [], "and with none smaller"
    assert names == [320, True, [2, 1000]], "torchvision's checkpoints load"


@pytest.mark.skipif(not HAS_KERAS, reason="Keras is not installed")
def test_keras_models_have_the_published_parameters_and_give_the_same_values() -> None:
    counts, apart = answer(ON_KERAS)
    trainable = {name: found[0] for name, found in counts.items()}
    assert trainable == {
        "resnet50": 25_583_592, "resnet101": 44_601_832, "resnet152": 60_268_520, "inception_v3": 23_817_352,  # keras.applications
        "inception_v1": 6_998_552, "inception_v4": 42_679_816, "vgg_a": 132_863_336, "vgg16": 138_357_544, "vgg19": 143_667_240,
        "alexnet": 61_100_840, "resnet8": 75_290, "resnet20": 269_722, "resnet110": 1_727_962, "resnet1001": 10_327_706,
    }  # fmt: skip
    whole = {name: counts[name][1] for name in ("resnet50", "resnet101", "resnet152", "inception_v3", "inception_v4")}
    assert whole == {
        "resnet50": 25_636_712, "resnet101": 44_707_176, "resnet152": 60_419_944, "inception_v3": 23_851_784, "inception_v4": 42_742_984,
    }  # fmt: skip
    assert all(difference < 1e-4 for difference in apart.values()), apart
