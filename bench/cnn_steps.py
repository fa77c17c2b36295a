"""A CNN's training step of one process: `farandole run`'s, against the fastest loop we know of each framework.

    KERAS_BACKEND=torch farandole launch -n 1 --threads 2 -- python -m bench.cnn_steps SETTINGS OUT

torch: a plain module in a plain loop, channels last or first. TensorFlow and JAX: one compiled function a step, of the same Keras model,
without what Keras' fit() does around it. All begin with the same weights.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import farandole.keras as hvd
from bench.cases import Case, Measured
from bench.contest import Contestant, Ranks, contest
from farandole.study.cnn.settings import CnnSettings
from farandole.train.plan import make_plan
from farandole.train.rank.batches import TrainingBatches
from farandole.train.rank.hooks import StopWhenNotFinite
from farandole.train.rank.trainer import make_trainer
from farandole.workloads.cnn.data import load

__all__ = ["RATE", "measure"]

RATE = 0.01
OURS, OURS_KERAS = "farandole", "farandole, Keras"
_NEAR = 1e-3

Step = Callable[[Any, Any], Any]
"""Trains on inputs and labels; the loss, which is waited for."""


class _Ours:
    """The model, the batches and the steps of `farandole run`."""

    def __init__(self, api: str, model: str, batch: int, steps: int) -> None:
        backend = keras.backend.backend()
        framework = "torch" if api == "torch" else {"torch": "keras-torch"}.get(backend, backend)
        settings = CnnSettings(model=model, framework=framework, batch_size=batch, num_batches=steps, num_warmup_batches=0).run(1)
        self.data = load(settings.parameters, None)
        plan = make_plan(settings, len(self.data.train), 1)
        self.trainer: Any = make_trainer(settings, plan, self.data, rank=0, size=1)
        self._watch = StopWhenNotFinite(plan, self.trainer)
        self._batches = TrainingBatches(self.data.train, plan, seed=0, shuffle=False, rank=0, size=1)

    def epoch(self) -> None:
        self.trainer.fit(self._batches, [self._watch], None, [], first=0)


def measure(ranks: Ranks, *, model: str, batch: int, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step, as mean of one epoch of `block_steps`."""
    backend = keras.backend.backend()
    ours = {OURS_KERAS: _Ours("keras", model, batch, block_steps)}
    if backend == "torch":
        ours[OURS] = _Ours("torch", model, batch, block_steps)
    inputs, labels = ours[OURS_KERAS].data.train.batch(np.arange(batch))
    peers: dict[str, Step] = importlib.import_module(f"bench.cnn_{backend}").steps({name: one.trainer for name, one in ours.items()})
    _check(peers, inputs, labels)
    contestants = [Contestant(name=name, stages=[("", one.epoch)]) for name, one in ours.items()]
    for name, step in peers.items():
        contestants.append(Contestant(name=name, stages=[("", lambda step=step: [step(inputs, labels) for _ in range(block_steps)])]))  # type: ignore[misc]
    ranks.say(f"{model} on {backend}, batch {batch}: {'; '.join(one.name for one in contestants)}")
    found = contest(ranks, contestants, budget_s=budget_s)
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in found.items()}
    told = {OURS: "plain module", OURS_KERAS: "Keras model"}
    notes = {"backend": backend, "ours": {name: told[name] for name in ours}, "peers": list(peers), "batch": batch}
    return [Case(what=f"{model} step, batch {batch}, {backend}", samples=per_step, notes=notes)]


def _check(peers: dict[str, Step], inputs: Any, labels: Any) -> None:
    """Peers of one model train alike: the first two losses of all are the same."""
    losses = {name: [float(step(inputs, labels)) for _ in range(2)] for name, step in peers.items()}
    first = next(iter(losses.values()))
    for name, found in losses.items():
        if not np.allclose(found, first, rtol=_NEAR):
            raise AssertionError(f"the losses of {name} are {found}, those of {next(iter(losses))} {first}")


def main(settings: str, out: str) -> None:
    hvd.init()
    ranks = Ranks(Path(out).parent)
    cases = measure(ranks, **json.loads(settings))
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(Measured(cases=cases, facts=hvd.describe()).as_json()))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
