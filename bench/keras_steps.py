"""Keras training steps of one backend: ranks that do not communicate, farandole and, on torch, DDP.

    KERAS_BACKEND=jax farandole launch -n 2 --threads 1 -- python -m bench.keras_steps SETTINGS OUT
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import farandole.keras as hvd
from bench.cases import Case, Measured
from bench.contest import Contestant, Ranks, contest

__all__ = ["measure"]

ALONE, OURS, DDP = "no communication", "farandole", "DDP"
ALONE_LOOP, OURS_LOOP = "no communication, in DDP's loop", "farandole, in DDP's loop"
CLASSES = 10


def _mlp() -> tuple[Any, tuple[int, ...]]:
    """CANDLE P1B2's shape: 29.5 M parameters, 98% of them in the first layer; a batch of 60."""
    dense = keras.layers.Dense
    body = [dense(width, activation="sigmoid") for width in (1024, 512, 256)]
    return keras.Sequential([keras.Input((28_204,)), *body, dense(CLASSES)]), (60, 28_204)


def _conv() -> tuple[Any, tuple[int, ...]]:
    """A small convolutional net: 0.3 M parameters, a batch of 32 at 32x32."""
    layers = keras.layers
    body = [layers.Conv2D(width, 3, activation="relu", strides=2) for width in (32, 64, 128)]
    tail = [layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((32, 32, 3)), *body, *tail]), (32, 32, 32, 3)


MODELS = {"mlp": _mlp, "conv": _conv}


class _Trainer:
    """A model in training by one of the contestants; a turn is one fit() of some steps."""

    def __init__(self, name: str, model: str, distributed: bool, rank: int, block_steps: int) -> None:
        self.name = name
        keras.utils.set_random_seed(0)
        self.model, shape = MODELS[model]()
        optimizer = keras.optimizers.SGD(0.01)
        self.model.compile(
            hvd.DistributedOptimizer(optimizer) if distributed else optimizer,
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        rng = np.random.default_rng(1 + rank)
        rows = shape[0] * block_steps
        self._inputs = rng.normal(size=(rows, *shape[1:])).astype("float32")
        self._labels = rng.integers(CLASSES, size=rows).astype("int32")

    def contestant(self, block_steps: int) -> Contestant:
        return Contestant(name=self.name, stages=[("", lambda: self.steps(block_steps))])

    def steps(self, count: int) -> None:
        self.model.fit(self._inputs, self._labels, batch_size=len(self._inputs) // count, shuffle=False, verbose=0)


def _ddp(model: Any) -> Any:
    """The same Keras model inside torch's DDP."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)


def _in_loop(trainer: _Trainer, forward: Any) -> _Trainer:
    """Stepped by a loop, with none of fit()'s work for batches, metrics and callbacks; `forward` is the model, or DDP's."""
    import torch

    model = trainer.model
    inputs, labels = (keras.ops.convert_to_tensor(a) for a in (trainer._inputs, trainer._labels))

    def steps(count: int) -> None:
        for x, y in zip(inputs.chunk(count), labels.chunk(count)):
            model.zero_grad()
            model.loss(y, forward(x)).backward()
            with torch.no_grad():
                model.optimizer.apply([v.value.grad for v in model.trainable_weights], model.trainable_weights)

    trainer.steps = steps  # type: ignore[method-assign]
    return trainer


def _on_torch(model: str, rank: int, block_steps: int) -> list[_Trainer]:
    """DDP, which Keras' fit() does not know, in a loop; and in the same loop the others."""

    def trainer(name: str, distributed: bool = False) -> _Trainer:
        return _Trainer(name, model, distributed, rank, block_steps)

    ddp, ours, alone = trainer(DDP), trainer(OURS_LOOP, distributed=True), trainer(ALONE_LOOP)
    return [_in_loop(ddp, _ddp(ddp.model)), *(_in_loop(t, t.model) for t in (ours, alone))]


def measure(ranks: Ranks, *, model: str, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step, as mean of one fit(): of its steps, and of one more reduction that ends the training."""
    backend = keras.backend.backend()
    ranks.say(f"keras {model} on {backend}, {ranks.size} ranks")
    ours = _Trainer(OURS, model, True, ranks.rank, block_steps)
    trainers = [_Trainer(ALONE, model, False, ranks.rank, block_steps), ours]
    if backend == "torch":
        ranks.join_gloo()
        trainers += _on_torch(model, ranks.rank, block_steps)
    samples = contest(ranks, [t.contestant(block_steps) for t in trainers], budget_s=budget_s)
    found = ours.model.optimizer.communication_statistics()
    if backend == "torch":
        ranks.leave_gloo()
    notes = {
        "backend": backend,
        "parameters": ours.model.count_params(),
        "exposed_ms_per_step": 1e3 * found["exposed_s"] / found["steps"],
        "copied_mb_per_step": found["copied_bytes"] / found["steps"] / 1e6 if "copied_bytes" in found else None,
    }
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in samples.items()}
    return [Case(what=f"keras {model} step, {backend}", samples=per_step, notes=notes)]


def main(settings: str, out: str) -> None:
    hvd.init()
    ranks = Ranks(Path(out).parent)
    cases = measure(ranks, **json.loads(settings))
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(Measured(cases=cases, facts=hvd.describe()).as_json()))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
