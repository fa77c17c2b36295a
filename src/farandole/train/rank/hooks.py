"""What happens around a run's steps and epochs, on every rank, whichever framework trains.

Metrics of an epoch are those of all ranks, so that hooks which decide by a metric decide alike everywhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from farandole.comm import world
from farandole.comm.named.collectives import allgather_object, broadcast_object
from farandole.errors import TrainingError
from farandole.optim.scaling import warmup_factor
from farandole.train.plan import Plan
from farandole.train.rank.batches import EvaluationBatches, TrainingBatches
from farandole.train.rank.trainer import Trainer

__all__ = ["EpochRecord", "Epochs", "Hook", "ReduceRate", "Step", "StopWhenNotFinite", "Timeout", "WarmUp"]


class Hook:
    """Called around batches and epochs, which are counted from 0; `metrics` are those known so far of an epoch."""

    def begin_epoch(self, epoch: int) -> None: ...

    def begin_batch(self, batch: int) -> None: ...

    def end_batch(self, batch: int, loss: float) -> None: ...

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None: ...


@dataclass(slots=True)
class EpochRecord:
    """What an epoch has shown, over all ranks."""

    epoch: int
    """From 1."""
    seconds: float
    """On this rank, validation and test included."""
    validation_s: float
    rate: float
    metrics: dict[str, float]
    """Of training, and, after `val_` and `test_`, of validation and of the test data."""
    test_s: float = 0.0
    samples: int = 0
    """Over all ranks it was trained as; 0 where a checkpoint of an older version does not say."""

    @property
    def training_s(self) -> float:
        return self.seconds - self.validation_s - self.test_s


class Step(NamedTuple):
    """A step of training, on this rank."""

    epoch: int
    """From 1."""
    number: int
    """In its epoch, from 0."""
    seconds: float


class Epochs(Hook):
    """Draws each epoch's order, validates and tests after it, and keeps a record; the first of all hooks.

    `test` is None where validation tells the same. The last epoch is not tested: evaluation follows it. Checkpoints have
    it all: what it knows is of all parts of a run.
    """

    def __init__(
        self,
        plan: Plan,
        trainer: Trainer,
        batches: TrainingBatches,
        validation: EvaluationBatches,
        test: EvaluationBatches | None,
        told: Callable[[EpochRecord], None],
    ) -> None:
        self.records: list[EpochRecord] = []
        self.steps: list[Step] = []
        self.begun_with: list[int] = []
        """The epoch each part of the run began with, which has the costs that come once: compiling, first touches of memory."""
        self.passing: Callable[[], bool] = lambda: False
        """Whether a batch is let pass that a part before has trained on."""
        self._passed_s = 0.0
        self._plan, self._trainer = plan, trainer
        self._batches, self._validation, self._test, self._told = batches, validation, test, told
        self._epoch_began = self._batch_began = 0.0
        self._epoch = 0
        self._begun_s: float | None = None
        """Of the step's batches so far; None where some were trained on by a part before."""
        self._began_part = False

    def begin_epoch(self, epoch: int) -> None:
        self._batches.epoch = epoch
        self._epoch = epoch + 1
        if not self._began_part:
            self.begun_with.append(self._epoch)
            self._began_part = True
        self._batch_began = time.perf_counter()
        self._epoch_began, self._passed_s = self._batch_began - self._passed_s, 0.0

    def end_batch(self, batch: int, loss: float) -> None:
        now = time.perf_counter()
        if not batch % self._plan.passes:
            self._begun_s = 0.0
        if self.passing():
            self._begun_s = None
        if self._begun_s is not None:
            self._begun_s += now - self._batch_began
            if not (batch + 1) % self._plan.passes:
                self.steps.append(Step(self._epoch, batch // self._plan.passes, self._begun_s))
        self._batch_began = now

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        found = self._trainer.metrics()
        began = time.perf_counter()
        validation = self._trainer.evaluate(self._validation)
        validated = time.perf_counter()
        found |= _named("val", validation) | _named("test", self._tested(epoch, validation))
        metrics |= found
        now = time.perf_counter()
        self.records.append(
            EpochRecord(
                epoch + 1,
                now - self._epoch_began,
                validated - began,
                self._trainer.rate,
                found,
                test_s=now - validated,
                samples=self._plan.samples_per_epoch,
            )
        )
        self._told(self.records[-1])
        self._epoch_began = now

    def state_dict(self) -> Any:
        """For checkpoints."""
        in_epoch_s = time.perf_counter() - self._epoch_began
        records = [asdict(record) for record in self.records]
        steps = np.array(self.steps, np.float64).reshape(-1, len(Step._fields))
        return {"records": records, "in_epoch_s": in_epoch_s, "steps": steps, "of_plan": _step_of(self._plan), "begun_with": self.begun_with}

    def load_state_dict(self, state: Any) -> None:
        self.records[:] = [EpochRecord(**record) for record in state["records"]]
        self._passed_s = state["in_epoch_s"]
        # Steps of an older version do not say of which epoch they were; those of another plan are others.
        if state.get("of_plan") == _step_of(self._plan):
            self.steps[:] = [Step(int(epoch), int(number), float(seconds)) for epoch, number, seconds in state["steps"]]
            self.begun_with[:] = state["begun_with"]

    def steady_s(self) -> list[float]:
        """Seconds of the steps that tell how fast training is: full batches, after the epoch that a part of the run began with.

        Where there is no other epoch: after the first tenth of it.
        """
        full = [step for step in self.steps if not self._plan.is_short(step.number)]
        later = [step for step in full if step.epoch not in self.begun_with]
        return [step.seconds for step in later or full[-(-len(full) // 10) :]]

    def _tested(self, epoch: int, validation: dict[str, float]) -> dict[str, float]:
        if self._test is None:
            return validation
        return {} if epoch + 1 == self._plan.epochs else self._trainer.evaluate(self._test)

    def add_evaluation(self, found: dict[str, float]) -> None:
        """What the trained model does with the test data, for the last epoch's record."""
        if self.records:
            self.records[-1].metrics |= _named("test", found)


def _step_of(plan: Plan) -> list[int]:
    """What makes the steps of two plans alike."""
    return [plan.ranks, plan.passes, plan.steps, plan.local_batch, plan.samples_per_epoch]


def _named(part: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{part}_{name}": value for name, value in metrics.items()}


class StopWhenNotFinite(Hook):
    """Ends the run, on all ranks, in the step in which the loss of one is no number, or in the epoch after which it is none.

    The loss of a step is that of the weights before it: what its gradients do to them shows in the next one, or, after
    the last, in validation. Comes after `Epochs`, whose metrics are those of all ranks.
    """

    def __init__(self, plan: Plan, trainer: Trainer) -> None:
        self.last_good: Callable[[], str] = lambda: ""
        """What to say of checkpoints."""
        self._plan, self._trainer = plan, trainer
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def end_batch(self, batch: int, loss: float) -> None:
        if world.size() > 1 and batch + 1 == self._plan.steps * self._plan.passes:
            self._check_last(loss)
        elif not math.isfinite(loss):
            if world.size() > 1:
                self._trainer.leave()
            self._stop(f"the loss is {loss} in step {batch // self._plan.passes + 1} of epoch {self._epoch + 1}")

    def _check_last(self, loss: float) -> None:
        """Of an epoch: the others have no step left in which to hear of it. Collective."""
        losses = allgather_object(loss)
        ranks = [str(rank) for rank, found in enumerate(losses) if not math.isfinite(found)]
        if ranks:
            where = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
            self._stop(f"the loss is {losses[int(ranks[0])]} in the last step of epoch {self._epoch + 1}, on {where}")

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        for part, data in (("val", "validation"), ("test", "test")):
            self.check(data, metrics.get(f"{part}_loss", 0.0), f"after epoch {epoch + 1}")

    def check(self, data: str, loss: float, when: str) -> None:
        """Of validation or test data: it may be infinite while training still goes well, but not be no number."""
        if math.isnan(loss):
            self._stop(f"the loss on {data} data is {loss} {when}")

    def _stop(self, what: str) -> None:
        raise TrainingError(
            f"[rank {world.rank()}/{world.size()}] {what}, at a rate of {self._plan.rate:g}. Use a smaller learning_rate, "
            f"--lr-scaling none or sqrt, or --warmup-epochs 1. {self.last_good()}".rstrip()
        )


class ReduceRate(Hook):
    """Divides the rate by 10 when the validation loss has not got better for some epochs."""

    def __init__(self, trainer: Trainer, *, patience: int = 10, least_gain: float = 1e-4) -> None:
        self._trainer, self._patience, self._least_gain = trainer, patience, least_gain
        self._best, self._waited = math.inf, 0

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        loss = metrics["val_loss"]
        self._waited += 1
        if loss < self._best - self._least_gain:
            self._best, self._waited = loss, 0
        elif self._waited >= self._patience:
            self._trainer.rate, self._waited = self._trainer.rate / 10, 0

    def state_dict(self) -> Any:
        """For checkpoints."""
        return {"best": self._best, "waited": self._waited}

    def load_state_dict(self, state: Any) -> None:
        self._best, self._waited = state["best"], state["waited"]


class WarmUp(Hook):
    """Raises the rate step by step from that of one rank to that of all, which follows from it by the rule `scaling`."""

    def __init__(self, plan: Plan, trainer: Trainer, epochs: int, scaling: str) -> None:
        self._plan, self._trainer, self._steps, self._scaling = plan, trainer, epochs * plan.steps, scaling
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def begin_batch(self, batch: int) -> None:
        step = self._epoch * self._plan.steps + batch // self._plan.passes
        if step <= self._steps:
            self._trainer.rate = self._plan.rate * warmup_factor(step, self._steps, self._plan.ranks, self._scaling)


class Timeout(Hook):
    """Ends training with the epoch in which rank 0's time is up."""

    def __init__(self, plan: Plan, trainer: Trainer, seconds: float, note: Callable[[str], None]) -> None:
        self._plan, self._trainer, self._seconds, self._note = plan, trainer, seconds, note
        self._ends = time.perf_counter() + seconds

    def end_epoch(self, epoch: int, metrics: dict[str, float]) -> None:
        if not broadcast_object(time.perf_counter() > self._ends, 0, name="timeout"):
            return
        self._trainer.stop()
        if epoch + 1 < self._plan.epochs:
            self._note(f"timeout={self._seconds:g}: training ended after {epoch + 1} of {self._plan.epochs} epochs")
