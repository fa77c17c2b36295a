"""Rates of steps, and the lines that tell them: those of tf_cnn_benchmarks, or of Horovod's pytorch_synthetic_benchmark.

Rates are of all ranks together where a line does not say otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from farandole import __version__
from farandole.study.cnn.settings import CnnSettings

__all__ = ["Lines", "Rate", "lines_of"]

_RULE = "-" * 64
_SIGMAS = 1.96


@dataclass(frozen=True, slots=True)
class Rate:
    """Samples a second, as tf_cnn_benchmarks has them: jitter is the spread of most steps, whatever a few outliers do."""

    mean: float
    uncertainty: float
    """Standard deviation over the root of the number of steps."""
    jitter: float
    """1.4826 times the median distance from the median."""

    @classmethod
    def of(cls, steps_s: Sequence[float], global_batch: int) -> Rate:
        rates = global_batch / np.array(steps_s)
        return cls(
            mean=global_batch / float(np.mean(steps_s)), uncertainty=float(rates.std() / np.sqrt(len(rates))),
            jitter=1.4826 * float(np.median(np.abs(rates - np.median(rates)))),
        )  # fmt: skip


class Lines(Protocol):
    """What is said before, while and after steps are measured."""

    def begin(self) -> list[str]: ...

    def measure(self) -> list[str]: ...

    def step(self, steps_s: Sequence[float], loss: float) -> list[str]:
        """`steps_s` are those measured so far."""

    def end(self, steps_s: Sequence[float]) -> list[str]: ...


def lines_of(settings: CnnSettings, ranks: int, trained_by: str) -> Lines:
    return (_Horovod if settings.style == "horovod" else _TfCnn)(settings, ranks, trained_by)


class _TfCnn:
    def __init__(self, settings: CnnSettings, ranks: int, trained_by: str) -> None:
        self._settings, self._ranks, self._trained_by = settings, ranks, trained_by
        self._batch = settings.batch_size * ranks

    def begin(self) -> list[str]:
        given = self._settings
        source = given.data_dir or f"{given.samples} (synthetic)"
        told = {
            "Farandole": f"{__version__}, {self._trained_by}", "Model": given.model, "Dataset": source, "Mode": "training",
            "Batch size": f"{self._batch} global", "": f"{given.batch_size} per device", "Num batches": given.num_batches,
            "Devices": f"{self._ranks} rank{'s' * (self._ranks > 1)} on CPUs", "Data format": given.data_format, "Optimizer": given.optimizer,
        }  # fmt: skip
        return [*(f"{name + ':' if name else '':<13}{value}" for name, value in told.items()), "==========", "Running warm up"]

    def measure(self) -> list[str]:
        return ["Done warm up", "Step\tImg/sec\ttotal_loss"]

    def step(self, steps_s: Sequence[float], loss: float) -> list[str]:
        number = len(steps_s)
        if number > 1 and number % self._settings.display_every:
            return []
        rate = Rate.of(steps_s, self._batch)
        return [f"{number}\timages/sec: {rate.mean:.1f} +/- {rate.uncertainty:.1f} (jitter = {rate.jitter:.1f})\t{loss:.3f}"]

    def end(self, steps_s: Sequence[float]) -> list[str]:
        return [_RULE, f"total images/sec: {self._batch * len(steps_s) / sum(steps_s):.2f}", _RULE]


class _Horovod:
    def __init__(self, settings: CnnSettings, ranks: int, trained_by: str) -> None:
        self._settings, self._ranks = settings, ranks

    def begin(self) -> list[str]:
        given = self._settings
        return [f"Model: {given.model}", f"Batch size: {given.batch_size}", f"Number of CPUs: {self._ranks}", "Running warmup..."]

    def measure(self) -> list[str]:
        return ["Running benchmark..."]

    def step(self, steps_s: Sequence[float], loss: float) -> list[str]:
        rates = self._rates(steps_s)
        return [] if len(steps_s) % self._settings.display_every else [f"Iter #{len(rates) - 1}: {rates[-1]:.1f} img/sec per CPU"]

    def end(self, steps_s: Sequence[float]) -> list[str]:
        rates = np.array(self._rates(steps_s))
        mean, margin = rates.mean(), _SIGMAS * rates.std()
        total = f"{self._ranks * mean:.1f} +-{self._ranks * margin:.1f}"
        return [f"Img/sec per CPU: {mean:.1f} +-{margin:.1f}", f"Total img/sec on {self._ranks} CPU(s): {total}"]

    def _rates(self, steps_s: Sequence[float]) -> list[float]:
        """Of a rank, in each measurement."""
        each = self._settings.display_every
        measured = [steps_s[start : start + each] for start in range(0, len(steps_s) - each + 1, each)]
        return [self._settings.batch_size * each / sum(steps) for steps in measured]
