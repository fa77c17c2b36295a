"""NT3's training step on one backend: that of `farandole run` against the backend without Keras.

    KERAS_BACKEND=torch farandole launch -n 1 --threads 2 -- python -m bench.nt3_steps SETTINGS OUT
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import farandole.keras as hvd
from bench.cases import Case, Measured
from bench.contest import Contestant, Ranks, contest
from bench.nt3_weights import RATE, Network
from farandole.train.plan import Plan
from farandole.train.rank.batches import TrainingBatches
from farandole.train.rank.hooks import StopWhenNotFinite
from farandole.train.rank.keras.trainer import KerasTrainer
from farandole.train.settings import RunSettings
from farandole.workloads import ArraySamples, TrainingData

__all__ = ["OURS", "Ours", "made_data", "measure"]

OURS = "farandole"
BATCH = 20
_NEAR = 1.25


def made_data(features: int, steps: int) -> ArraySamples:
    """Random genes, random labels."""
    rng = np.random.default_rng(0)
    x = rng.random((BATCH * steps, features, 1), dtype=np.float32)
    return ArraySamples(x, np.eye(2, dtype=np.float32)[rng.integers(2, size=len(x))])


class Ours:
    """The model, the batches and the steps of `farandole run`."""

    def __init__(self, samples: ArraySamples) -> None:
        settings = RunSettings.from_flat(
            {"benchmark": "nt3", "preset": "paper", "make_data": True, "learning_rate": RATE, "epochs": 1, "framework": keras.backend.backend()}
        )
        data = TrainingData(
            train=samples,
            validation=samples,
            test=samples,
            classes=("0", "1"),
        )
        steps = len(samples) // BATCH
        plan = Plan(
            ranks=1, passes=1, parallel="epochs", epochs=1, steps=steps, local_batch=BATCH, rate=RATE,
            samples_per_epoch=len(samples),
        )  # fmt: skip
        self._trainer = KerasTrainer(settings, plan, data, rank=0, size=1)
        self._watch = StopWhenNotFinite(plan, self._trainer)
        self.model = self._trainer.model
        self._batches = TrainingBatches(samples, plan, seed=0, shuffle=False, rank=0, size=1)

    def epoch(self) -> None:
        self._trainer.fit(self._batches, [self._watch], None, [], first=0)

    def loss(self, x: Any, y: Any) -> float:
        return float(self.model.evaluate(x, y, batch_size=len(x), verbose=0, return_dict=True)["loss"])


def _epoch(network: Network, samples: ArraySamples) -> None:
    for start in range(0, len(samples), BATCH):
        network.step(*samples.batch(np.arange(start, start + BATCH)))


def _check(networks: dict[str, Network], ours: Ours, samples: ArraySamples) -> None:
    """All start with the same weights, and must find the same loss."""
    batch = samples.batch(np.arange(BATCH))
    wanted = ours.loss(*batch)
    for name, network in networks.items():
        found = network.loss(*batch)
        if abs(found - wanted) > 1e-4 * wanted:
            raise AssertionError(f"the loss of {name} is {found}, that of {OURS} {wanted}")


def _near_the_fastest(networks: dict[str, Network], samples: ArraySamples) -> dict[str, Network]:
    """Those that may be the fastest: the turns of the others, which take seconds each, are given to these."""
    best = {}
    for name, network in networks.items():
        _epoch(network, samples)
        best[name] = min(_seconds(network, samples) for _ in range(3))
    return {name: network for name, network in networks.items() if best[name] < _NEAR * min(best.values())}


def _seconds(network: Network, samples: ArraySamples) -> float:
    began = time.perf_counter()
    _epoch(network, samples)
    return time.perf_counter() - began


def measure(ranks: Ranks, *, features: int, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step, as mean of one epoch of `block_steps`."""
    backend = keras.backend.backend()
    ranks.say(f"nt3 with {features:,} genes on {backend}")
    samples = made_data(features, block_steps)
    ours = Ours(samples)
    plain: dict[str, Network] = importlib.import_module(f"bench.nt3_{backend}").networks(
        ours.model.get_weights()
    )
    _check(plain, ours, samples)
    peers = _near_the_fastest(plain, made_data(features, 4))
    ranks.say(f"near the fastest of {len(plain)}: {'; '.join(peers)}")
    contestants = [Contestant(name=OURS, stages=[("", ours.epoch)])] + [
        Contestant(name=name, stages=[("", lambda network=network: _epoch(network, samples))])  # type: ignore[misc]
        for name, network in peers.items()
    ]
    found = contest(ranks, contestants, budget_s=budget_s)
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in found.items()}
    notes = {"backend": backend, "features": features, "peers": list(peers)}
    return [Case(what=f"nt3 step, {features:,} genes, {backend}", samples=per_step, notes=notes)]


def main(settings: str, out: str) -> None:
    hvd.init()
    ranks = Ranks(Path(out).parent)
    cases = measure(ranks, **json.loads(settings))
    if ranks.rank == 0:
        Path(out).write_text(json.dumps(Measured(cases=cases, facts=hvd.describe()).as_json()))
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
