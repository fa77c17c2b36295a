"""One rank of NT3 under torch's DDP: the model, the batches and the validation of `farandole run`, in a loop of its own.

    KERAS_BACKEND=torch farandole launch -n 2 --threads 1 -- python -m bench.nt3_ddp SETTINGS OUT

SETTINGS are those of `farandole run`.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import keras
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import farandole.keras as hvd
from bench.contest import Ranks
from farandole.train.plan import Plan, make_plan
from farandole.train.rank.batches import EvaluationBatches, TrainingBatches
from farandole.train.rank.keras.seeds import spread_seeds
from farandole.train.rank.keras.short_calls import shorten_calls
from farandole.train.settings import RunSettings
from farandole.workloads import TrainingData
from farandole.workloads.nt3.data import load
from farandole.workloads.nt3.model import build


class _Training:
    def __init__(self, settings: RunSettings, data: TrainingData, plan: Plan, ranks: Ranks) -> None:
        parameters: Any = settings.parameters
        random.seed(parameters.rng_seed)
        self.model = build(parameters, data)
        spread_seeds(self.model, ranks.rank, ranks.size)
        self.model.compile(parameters.optimizer, keras.losses.CategoricalCrossentropy())
        self.model.optimizer.learning_rate = plan.rate
        self.model.optimizer.build(self.model.trainable_variables)
        shorten_calls(self.model)
        self._wrapped = DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, broadcast_buffers=False
        )
        place = {"rank": ranks.rank, "size": ranks.size}
        self._plan = plan
        self._batches = TrainingBatches(
            data.train, plan, seed=parameters.rng_seed, shuffle=parameters.shuffle, **place
        )
        self._validation = EvaluationBatches(data.validation, plan.local_batch, **place)
        self._slower = keras.callbacks.ReduceLROnPlateau("val_loss", 0.1, patience=10, min_delta=1e-4)
        self._slower.set_model(self.model)

    def run(self) -> dict[str, float]:
        found: dict[str, float] = {}
        self._slower.on_train_begin()
        for epoch in range(self._plan.epochs):
            self._batches.epoch = epoch
            for number in range(len(self._batches)):
                self._step(*self._batches[number])
            found = self._validated()
            self._slower.on_epoch_end(epoch, {f"val_{name}": value for name, value in found.items()})
        return found

    def _step(self, x: Any, y: Any) -> None:
        model = self.model
        model.zero_grad()
        found = self._wrapped(torch.from_numpy(x), training=True)
        model.loss(torch.from_numpy(y), found).backward()
        with torch.no_grad():
            weights = model.trainable_weights
            model.optimizer.apply([v.value.grad for v in weights], weights)

    def _validated(self) -> dict[str, float]:
        sums = torch.zeros(3)
        with torch.no_grad():
            for number in range(len(self._validation)):
                x, y = (torch.from_numpy(part) for part in self._validation[number])
                found = self.model(x, training=False)
                right = (found.argmax(1) == y.argmax(1)).sum()
                sums += torch.stack([self.model.loss(y, found) * len(y), right, torch.tensor(len(y))])
        dist.all_reduce(sums)
        loss, right, count = sums.tolist()
        return {"loss": loss / count, "accuracy": right / count}


def main(given: str, out: str) -> None:
    hvd.init()
    ranks = Ranks(Path(out).parent)
    ranks.join_gloo()
    settings = RunSettings.from_flat(json.loads(given))
    data = load(settings.parameters, settings.data_folder)  # type: ignore[arg-type]
    plan = make_plan(settings, len(data.train), ranks.size)
    training = _Training(settings, data, plan, ranks)
    ranks.meet()
    began = time.perf_counter()
    found = training.run()
    seconds = time.perf_counter() - began
    if ranks.rank == 0:
        Path(out).write_text(json.dumps({"seconds": {"train": seconds}, "accuracy": found["accuracy"]}))
    ranks.leave_gloo()
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
