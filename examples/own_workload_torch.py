"""Your own data and torch module, through everything that `farandole run` and `farandole study` do.

    farandole run examples/own_workload_torch.py -n 2
    farandole run examples/own_workload_torch.py -n 2 --width 64 --emulate-ranks 8
    farandole study strong examples/own_workload_torch.py --ranks 1,2
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from farandole.workloads import Parameters, TorchModel, TrainingData, Workload, option, split


@dataclass(kw_only=True)
class Settings(Parameters):
    epochs: int = option(30, "passes over the training data")
    batch_size: int = option(25, "batch size per rank")
    optimizer: str = option("adam", "which")
    learning_rate: float | None = option(0.01, "of one rank alone")
    width: int = option(64, "units of the hidden layers")


def load(parameters: Settings, folder) -> TrainingData:  # two spirals that wind around each other
    random = np.random.default_rng(0)
    turns, label = random.uniform(0.25, 2, 2000), np.arange(2000) % 2
    angle = 2 * np.pi * turns + np.pi * label
    points = np.stack([turns * np.cos(angle), turns * np.sin(angle)], axis=1) + random.normal(0, 0.03, (2000, 2))
    return split(points.astype(np.float32), label)


def build(parameters: Settings, data: TrainingData) -> torch.nn.Module:
    widths = [data.features, parameters.width, parameters.width]
    hidden = [part for a, b in pairwise(widths) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(*hidden, torch.nn.Linear(widths[-1], 2))


MODEL = TorchModel(
    build=build, loss=torch.nn.functional.cross_entropy, metrics={"accuracy": lambda outputs, labels: outputs.argmax(1) == labels}
)
WORKLOAD = Workload(name="spirals", title="two spirals told apart", parameters=Settings, load=load, torch=MODEL, watched="accuracy")
