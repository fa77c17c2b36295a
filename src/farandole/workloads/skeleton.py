"""`farandole run --new my_model.py`: a workload to begin with."""

from __future__ import annotations

from pathlib import Path

from farandole.errors import SettingsError

__all__ = ["write_skeleton"]

_BEGINNING = '''"""To train it: farandole run {path} -n 2        its parameters: farandole run {path} --help"""

from dataclasses import dataclass

import numpy as np

from farandole.workloads import {model}, Parameters, TrainingData, Workload, option, split


@dataclass(kw_only=True, slots=True)
class Settings(Parameters):
    epochs: int = option(5, "passes over the training data")
    batch_size: int = option(20, "batch size per rank")
    optimizer: str = option("adam", "which")
    width: int = option(32, "units of the hidden layer")


def load(parameters, folder) -> TrainingData:
    """Your data, the same on every rank; `folder` is --data-dir."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.{target})
    return split(x, y)
'''

_TORCH = '''

def build(parameters, data):
    """Your model."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(data.features, parameters.width), torch.nn.ReLU(), torch.nn.Linear(parameters.width, 2))


def loss(outputs, targets):
    """One number: the mean over the batch."""
    import torch

    return torch.nn.functional.cross_entropy(outputs, targets)


def accuracy(outputs, targets):
    """A value for each sample."""
    return outputs.argmax(1) == targets


WORKLOAD = Workload(
    name="{name}",
    title="two classes of points",
    parameters=Settings,
    load=load,
    torch=TorchModel(build=build, loss=loss, metrics={{"accuracy": accuracy}}),
    watched="accuracy",
)
'''

_KERAS = '''

def build(parameters, data):
    """Your model, not compiled."""
    import keras

    layers = [keras.Input((data.features,)), keras.layers.Dense(parameters.width, "relu"), keras.layers.Dense(1, "sigmoid")]
    return keras.Sequential(layers)


def metrics(parameters, data):
    import keras

    return [keras.metrics.BinaryAccuracy(name="accuracy")]


WORKLOAD = Workload(
    name="{name}",
    title="two classes of points",
    parameters=Settings,
    load=load,
    keras=KerasModel(build=build, loss="binary_crossentropy", metrics=metrics),
    watched="accuracy",
)
'''


def write_skeleton(path: Path, api: str) -> None:
    """A file that `farandole run` trains as it is. Refuses to replace one."""
    if path.suffix != ".py":
        raise SettingsError(f"--new {path}: expected the name of a Python file, e.g. my_model.py")
    model, target, rest = ("TorchModel", "int64", _TORCH) if api == "torch" else ("KerasModel", "float32", _KERAS)
    name = "".join(letter if letter.isalnum() else "-" for letter in path.stem).strip("-") or "mine"
    try:
        with path.open("x") as file:
            file.write((_BEGINNING + rest).format(path=path, model=model, target=target, name=name))
    except FileExistsError:
        raise SettingsError(f"{path} is there already. Choose another name.") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
