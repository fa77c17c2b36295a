"""What observing a script costs: the same training steps with every hook in place, and without any.

A model of many small layers is the hardest case for hooks around modules; the step of the `mlp` benchmark is the usual one, also
with power sampled meanwhile, as `farandole observe --power` does. Keras' fit(), on torch, has hooks of its own around callbacks.
A step that is not timed comes first: hooks are put in place once, and what that costs is no cost of a step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from bench.cases import Case
from bench.contest import Contestant, Ranks, contest
from bench.models import workload
from farandole.observe import hooks, timeline

__all__ = ["measure"]

OFF, ON = "not observed", "observed"
_LAYERS = 60
_WIDTH = 512


class _Observation:
    """As `farandole observe` has it: hooks, a timeline that they write to, and with `power` a thread that samples it."""

    def __init__(self, folder: Path, rank: int, size: int, power: bool) -> None:
        self._path, self._rank, self._size = folder / "observed.json", rank, size
        os.environ[timeline.POWER_VARIABLE] = "1" if power else "0"

    def begin(self) -> None:
        timeline.start(self._path, rank=self._rank, size=self._size, host="bench", provisional=True)
        hooks.watch(timeline)

    def end(self) -> None:
        timeline.stop()
        timeline.discard_parts(self._path)


class _Trainer(Protocol):
    """What is observed."""

    def one_step(self) -> None: ...

    def epoch(self) -> None: ...


class _Loop:
    """A plain training loop, with a loader."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, batch: int) -> None:
        self._model = model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        data = TensorDataset(inputs, labels)
        self._loader = DataLoader(data, batch_size=batch)
        self._one = DataLoader(Subset(data, range(batch)), batch_size=batch)

    def one_step(self) -> None:
        self._train(self._one)

    def epoch(self) -> None:
        self._train(self._loader)

    def _train(self, batches: DataLoader[Any]) -> None:
        for inputs, labels in batches:
            self._optimizer.zero_grad()
            loss: Any = cross_entropy(self._model(inputs), labels)
            loss.backward()
            self._optimizer.step()


class _Fit:
    """Keras' fit() on torch: the small convolutional net of the `keras` benchmark."""

    def __init__(self, steps: int) -> None:
        os.environ["KERAS_BACKEND"] = "torch"
        import keras

        from bench.keras_steps import CLASSES, MODELS

        self._model, (self._batch, *shape) = MODELS["conv"]()
        self._model.compile(keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        rows = self._batch * steps
        self._inputs, self._labels = torch.randn(rows, *shape).numpy(), torch.randint(CLASSES, (rows,)).numpy()

    def one_step(self) -> None:
        self._fit(self._batch)

    def epoch(self) -> None:
        self._fit(len(self._inputs))

    def _fit(self, rows: int) -> None:
        self._model.fit(self._inputs[:rows], self._labels[:rows], batch_size=self._batch, shuffle=False, verbose=0)


def measure(ranks: Ranks, *, model: str, power: bool, block_steps: int, budget_s: float) -> list[Case]:
    """Seconds of a step, as mean of a block of steps.

    Steps vary far more from turn to turn than observing adds: many pairs of short turns are what tells it.
    """
    what = {"layers": f"{_LAYERS} layers", "keras": "keras conv"}.get(model, model)
    what = f"{what} step, observed{' with power' if power else ''}"
    ranks.say(f"observing: {what}")
    trainer: _Trainer = _mlp(ranks, block_steps) if model == "mlp" else _deep(block_steps) if model == "layers" else _Fit(block_steps)
    observation = _Observation(ranks.folder, ranks.rank, ranks.size, power)

    def begin() -> None:
        observation.begin()
        trainer.one_step()

    contestants = [
        Contestant(name=OFF, stages=[("", trainer.epoch)], prepare=trainer.one_step),
        Contestant(name=ON, stages=[("", trainer.epoch)], prepare=begin, tidy=observation.end),
    ]
    samples = contest(ranks, contestants, budget_s=budget_s, most_rounds=2000)
    per_step = {name: [s / block_steps for s in seconds] for name, seconds in samples.items()}
    return [Case(what=what, samples=per_step, notes={"block_steps": block_steps})]


def _mlp(ranks: Ranks, steps: int) -> _Loop:
    work = workload("mlp", ranks.rank)
    inputs, labels = work.inputs.repeat(steps, 1), work.labels.repeat(steps)
    return _Loop(work.model, inputs, labels, len(work.inputs))


def _deep(steps: int) -> _Loop:
    layers = [layer for _ in range(_LAYERS // 2) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
    inputs, labels = torch.randn(64 * steps, _WIDTH), torch.zeros(64 * steps, dtype=torch.long)
    return _Loop(nn.Sequential(*layers), inputs, labels, 64)
