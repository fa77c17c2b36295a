"""What happens around a run's steps and epochs, on every rank.

Metrics of an epoch are those of all ranks: their states are sums, which are added up. Callbacks that decide by a metric
therefore decide alike everywhere.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

from farandole.comm import world
from farandole.comm.collectives import Sum, allgather_object, allreduce, broadcast_object
from farandole.errors import MismatchError, TrainingError
from farandole.optim.scaling import warmup_factor
from farandole.train.batches import EvaluationBatches, TrainingBatches
from farandole.train.plan import Plan

__all__ = ["EpochRecord", "Epochs", "Step", "StopWhenNotFinite", "Timeout", "WarmUp", "combined_metrics", "evaluated"]


def combined_metrics(model: Any) -> dict[str, float]:
    """The model's metrics over what all ranks have seen since they were reset. Collective."""
    variables = model.metrics_variables
    arrays = [np.asarray(keras.ops.convert_to_numpy(v), np.float64) for v in variables]
    packed = np.concatenate([array.reshape(-1) for array in arrays])
    total = allreduce(packed, op=Sum, name="metrics")
    for variable, part in zip(variables, np.split(total, np.cumsum([array.size for array in arrays])[:-1])):
        variable.assign(part.reshape(variable.shape).astype(variable.dtype))
    return {name: float(value) for name, value in model.get_metrics_result().items()}


def evaluated(model: Any, batches: EvaluationBatches) -> dict[str, float]:
    """Loss and metrics over the samples of which every rank has a share. Collective."""
    if len(batches):
        model.evaluate(batches, verbose=0)
    else:
        model.reset_metrics()
    return combined_metrics(model)


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


class Epochs(keras.callbacks.Callback):
    """Draws each epoch's order, validates and tests after it, and keeps a record; the first of all callbacks.

    `test` is None where validation tells the same. The last epoch is not tested: evaluation follows it. Checkpoints have
    it all: what it knows is of all parts of a run.
    """

    def __init__(
        self,
        plan: Plan,
        batches: TrainingBatches,
        validation: EvaluationBatches,
        test: EvaluationBatches | None,
        told: Callable[[EpochRecord], None],
    ) -> None:
        super().__init__()
        self.records: list[EpochRecord] = []
        self.steps: list[Step] = []
        self.begun_with: list[int] = []
        """The epoch each part of the run began with, which has the costs that come once: compiling, first touches of memory."""
        self.passing: Callable[[], bool] = lambda: False
        """Whether a batch is let pass that a part before has trained on."""
        self._passed_s = 0.0
        self._plan = plan
        self._batches, self._validation, self._test, self._told = batches, validation, test, told
        self._epoch_began = self._batch_began = 0.0
        self._epoch = 0
        self._begun_s: float | None = None
        """Of the step's batches so far; None where some were trained on by a part before."""
        self._began_part = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batches.epoch = epoch
        self._epoch = epoch + 1
        if not self._began_part:
            self.begun_with.append(self._epoch)
            self._began_part = True
        self._batch_began = time.perf_counter()
        self._epoch_began, self._passed_s = self._batch_began - self._passed_s, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
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

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        metrics = combined_metrics(self.model)
        began = time.perf_counter()
        validation = evaluated(self.model, self._validation)
        validated = time.perf_counter()
        metrics |= _named("val", validation) | _named("test", self._tested(epoch, validation))
        now = time.perf_counter()
        if logs is not None:
            logs.update(metrics)
        rate = float(self.model.optimizer.learning_rate)
        self.records.append(
            EpochRecord(
                epoch + 1,
                now - self._epoch_began,
                validated - began,
                rate,
                metrics,
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
        return {} if epoch + 1 == self.params["epochs"] else evaluated(self.model, self._test)

    def add_evaluation(self, found: dict[str, float]) -> None:
        """What the trained model does with the test data, for the last epoch's record."""
        if self.records:
            self.records[-1].metrics |= _named("test", found)


def _step_of(plan: Plan) -> list[int]:
    """What makes the steps of two plans alike."""
    return [plan.ranks, plan.passes, plan.steps, plan.local_batch, plan.samples_per_epoch]


def _named(part: str, metrics: dict[str, float]) -> dict[str, float]:
    return {f"{part}_{name}": value for name, value in metrics.items()}


class StopWhenNotFinite(keras.callbacks.Callback):
    """Ends the run, on all ranks, in the step in which the loss of one is no number, or in the epoch after which it is none.

    The loss of a step is that of the weights before it: what its gradients do to them shows in the next one, or, after
    the last, in validation. Comes after `Epochs`, whose metrics are those of all ranks.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.last_good: Callable[[], str] = lambda: ""
        """What to say of checkpoints."""
        self._plan = plan
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if world.size() > 1 and batch + 1 == self._plan.steps * self._plan.passes:
            self._check_last(loss)
        elif not math.isfinite(loss):
            if world.size() > 1:
                self._tell_others()
            self._stop(f"the loss is {loss} in step {batch // self._plan.passes + 1} of epoch {self._epoch + 1}")

    def _check_last(self, loss: float) -> None:
        """Of an epoch: the others have no step left in which to hear of it. Collective."""
        losses = allgather_object(loss)
        ranks = [str(rank) for rank, found in enumerate(losses) if not math.isfinite(found)]
        if ranks:
            where = f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"
            self._stop(f"the loss is {losses[int(ranks[0])]} in the last step of epoch {self._epoch + 1}, on {where}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        found = logs or {}
        for part, data in (("val", "validation"), ("test", "test")):
            self.check(data, found.get(f"{part}_loss", 0.0), f"after epoch {epoch + 1}")

    def check(self, data: str, loss: float, when: str) -> None:
        """Of validation or test data: it may be infinite while training still goes well, but not be no number."""
        if math.isnan(loss):
            self._stop(f"the loss on {data} data is {loss} {when}")

    def _tell_others(self) -> None:
        """Take part in their next step as one that has ended: they raise, too, where they would wait for this rank."""
        with contextlib.suppress(MismatchError):  # which says on this rank that they had not ended
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def _stop(self, what: str) -> None:
        raise TrainingError(
            f"[rank {world.rank()}/{world.size()}] {what}, at a rate of {self._plan.rate:g}. Use a smaller learning_rate, "
            f"--lr-scaling none or sqrt, or --warmup-epochs 1. {self.last_good()}".rstrip()
        )


class WarmUp(keras.callbacks.Callback):
    """Raises the rate step by step from that of one rank to that of all, which follows from it by the rule `scaling`."""

    def __init__(self, plan: Plan, epochs: int, scaling: str) -> None:
        super().__init__()
        self._plan, self._steps, self._scaling = plan, epochs * plan.steps, scaling
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        step = self._epoch * self._plan.steps + batch // self._plan.passes
        if step <= self._steps:
            if keras.backend.backend() == "jax":
                self.model.jax_state_sync()  # the compiled steps keep the variables, the rate among them
            self.model.optimizer.learning_rate = self._plan.rate * warmup_factor(
                step, self._steps, self._plan.ranks, self._scaling
            )


class Timeout(keras.callbacks.Callback):
    """Ends training with the epoch in which rank 0's time is up."""

    def __init__(self, seconds: float, note: Callable[[str], None]) -> None:
        super().__init__()
        self._seconds, self._note = seconds, note
        self._ends = time.perf_counter() + seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not broadcast_object(time.perf_counter() > self._ends, 0, name="timeout"):
            return
        self.model.stop_training = True
        if epoch + 1 < self.params["epochs"]:
            self._note(f"timeout={self._seconds:g}: training ended after {epoch + 1} of {self.params['epochs']} epochs")
