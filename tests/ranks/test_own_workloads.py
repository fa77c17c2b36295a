"""Every kind of samples trains the same weights, and several modules train with a step of the user's, on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from ranktest import run_ranks

pytest.importorskip("torch")

WORKLOADS = """
from dataclasses import dataclass
import numpy as np
import torch
from farandole.workloads import ArraySamples, DatasetSamples, Parameters, Stream, TorchModel, TrainingData, Workload, option

@dataclass(kw_only=True, slots=True)
class Settings(Parameters):
    epochs: int = option(2, "passes")
    batch_size: int = option(4, "batch")
    shuffle: bool = option(False, "a stream has an order of its own")
    learning_rate: float | None = option(0.05, "rate")

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(60, 2, 3)).astype(np.float32), RANDOM.integers(0, 2, 60)
TEST = ArraySamples(X[:9], Y[:9])

class Dataset:
    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number], Y[number]

def batches(epoch, rank, ranks, size):
    mine = np.arange(len(X))[rank::ranks]
    for start in range(0, len(mine), size):
        rows = mine[start : start + size]
        yield X[rows], Y[rows]

class Pictures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 2))

    def forward(self, pictures):
        return self.layers(pictures)

def named(x, y):
    return ArraySamples({"pictures": x}, y)

def workload(name, train, test=TEST):
    return Workload(
        name=name, parameters=Settings, load=lambda parameters, folder: TrainingData(train=train, test=test),
        torch=TorchModel(build=lambda parameters, data: Pictures(), loss=torch.nn.functional.cross_entropy,
                         metrics={"accuracy": lambda outputs, labels: outputs.argmax(1) == labels}),
    )

ARRAYS = workload("arrays", ArraySamples(X, Y))
DATASET = workload("dataset", DatasetSamples(Dataset()))
STREAM = workload("stream", Stream(samples=60, batches=batches))
NAMED = workload("named", named(X, Y), named(X[:9], Y[:9]))
SEVERAL = workload("several", ArraySamples((X,), Y), ArraySamples((X[:9],), Y[:9]))

def networks(parameters, data):
    return {"generator": torch.nn.Linear(2, 6), "critic": torch.nn.Linear(6, 1)}

def train_step(batch):
    generator, critic = batch.models["generator"], batch.models["critic"]
    real = batch.inputs.flatten(1)
    fake = generator(torch.randn(batch.length, 2))
    critic_loss = critic(fake.detach()).mean() - critic(real).mean()
    batch.step("critic", critic_loss)
    loss = -critic(fake).mean()
    batch.step("generator", loss)
    return {"loss": loss.detach(), "critic_loss": critic_loss.detach()}

def test_step(batch):
    critic_loss = -batch.models["critic"](batch.inputs.flatten(1)).mean()
    return {"loss": critic_loss, "critic_loss": critic_loss}

GAN = Workload(
    name="gan", parameters=Settings, load=lambda parameters, folder: TrainingData(train=ArraySamples(X), test=ArraySamples(X[:9])),
    torch=TorchModel(build=networks, train_step=train_step, test_step=test_step),
)
"""

SCRIPT = """
import sys
from farandole.train.supervisors import supervised
from farandole.errors import SettingsError

def trained(name, **given):
    return supervised(f"workloads.py:{name}").run(given).record

kinds = {name: trained(name) for name in ("ARRAYS", "DATASET", "STREAM", "NAMED", "SEVERAL")}
gan = trained("GAN", output_dir="gan")
import torch
saved = torch.load("gan/model.pt")
result({
    "weights": {name: record["weights"]["sha256"] for name, record in kinds.items()},
    "final": {name: record["final"]["test"] for name, record in kinds.items()},
    "gan": [sorted(gan["epochs"][-1]), sorted(saved), [sorted(part) for part in saved.values()], gan["weights"]["same_on_all_ranks"]],
})
"""


@pytest.mark.parametrize("n", [1, 2, 3])
def test_samples_of_every_kind_train_the_same_and_several_modules_train(tmp_path: Path, n: int) -> None:
    (tmp_path / "workloads.py").write_text(WORKLOADS)
    run = run_ranks(n, f"import os\nos.chdir({str(tmp_path)!r})\n{SCRIPT}", timeout=120, env={"OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = run.results[0]
    assert all(json.dumps(told) == json.dumps(found) for told in run.results)
    assert len({*found["weights"].values()}) == 1, found["weights"]
    assert len({json.dumps(told) for told in found["final"].values()}) == 1
    columns, models, parts, same = found["gan"]
    assert {"loss", "critic_loss", "val_loss", "val_critic_loss", "test_critic_loss"} <= {*columns}
    assert models == ["critic", "generator"] and parts == [["bias", "weight"]] * 2 and same
