"""What a run says while it goes on: on rank 0, to a stream and to its log."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from farandole.progress import Screen, Shown, duration, screen_of
from farandole.train.plan import Plan
from farandole.train.settings import RunSettings

if TYPE_CHECKING:
    from farandole.train.rank.hooks import EpochRecord
    from farandole.train.rank.memory_estimate import MemoryEstimate
    from farandole.workloads.samples import TrainingData

__all__ = ["RunLog"]


class RunLog:
    """Silent on ranks other than 0, which get no stream."""

    def __init__(self, stream: TextIO | None, log: Path | None = None) -> None:
        self._screen, self._log = None if stream is None else screen_of(stream), log
        self._began = time.perf_counter()
        self._done_before = 0

    def say(self, text: str) -> None:
        if self._screen is None:
            return
        self._screen.say(text)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    @contextmanager
    def loading(self) -> Iterator[None]:
        with self._shown(Shown("loading data")):
            yield

    @contextmanager
    def training(self, plan: Plan, epochs_done: int) -> Iterator[None]:
        """A part before has done some epochs."""
        self._began, self._done_before = time.perf_counter(), epochs_done
        with self._shown(_trained(plan, epochs_done)):
            yield

    @contextmanager
    def _shown(self, shown: Shown) -> Iterator[None]:
        screen = self._screen or Screen(io.StringIO())
        screen.show(shown)
        try:
            yield
        finally:
            screen.clear()

    def needs(self, settings: RunSettings, found: MemoryEstimate, share: int) -> None:
        """Before anything is loaded."""
        peak, data, more, free = (
            f"{nbytes / 2**20:,.0f} MiB" for nbytes in (found.peak_bytes, found.data_bytes, found.needed_bytes, share)
        )
        self.say(
            f"{settings.workload.name} ({settings.preset}) will take at most about {peak} a rank, to {found.largest_phase}: {more} "
            f"more than now, {data} of it data; {free} are free for each"
        )

    def plan(
        self, settings: RunSettings, plan: Plan, data: TrainingData, parameters: int, memory: int
    ) -> None:
        real = plan.ranks // plan.passes
        ranks = f"{real} rank{'s' * (real > 1)}"
        emulated = f" as {plan.ranks} would" if plan.passes > 1 else ""
        self.say(
            f"{settings.workload.name} ({settings.preset}) on {ranks}{emulated}, {settings.trained_by}: "
            f"{parameters:,} parameters, about {memory / 2**20:,.0f} MiB a rank"
        )
        self.say(
            f"{len(data.train):,} samples to train on, {len(data.validation):,} to validate, {len(data.test):,} to test, "
            f"{data.features:,} features; {data.nbytes / 2**20:,.0f} MiB a rank"
        )
        self.say(
            f"{plan.epochs} epochs of {plan.steps} steps each ({settings.parallel} divided, {settings.work} scaling), "
            f"batches of {plan.local_batch} a rank, {plan.global_batch} in all, rate {plan.rate:g}"
        )

    def epoch(self, plan: Plan, record: EpochRecord) -> None:
        digits = len(str(plan.epochs))
        shown = {name: value for name, value in record.metrics.items() if not name.startswith("test_")}
        figures = "  ".join(f"{name} {value:.4f}" for name, value in shown.items())
        passed_s, done = time.perf_counter() - self._began, record.epoch - self._done_before
        left_s = (plan.epochs - record.epoch) * passed_s / done
        speed = plan.samples_per_epoch / max(record.training_s, 1e-9)
        self.say(
            f"epoch {record.epoch:{digits}d}/{plan.epochs}  {figures}  rate {record.rate:g}  {record.seconds:.2f} s  "
            f"{speed:,.0f} samples/s  {duration(left_s)} left"
        )
        if self._screen is not None:
            self._screen.show(_trained(plan, record.epoch))


def _trained(plan: Plan, epochs: int) -> Shown:
    return Shown("training", done=epochs, total=plan.epochs, unit="epochs")
