"""Callbacks for fit(): the same start on all ranks, averaged metrics, rates that follow the number of ranks.

Put BroadcastGlobalVariablesCallback first and MetricAverageCallback before callbacks that look at metrics.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from farandole.comm.named.collectives import allgather_object
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.errors import MismatchError, SettingsError
from farandole.keras.functions import broadcast_global_variables
from farandole.keras.parts import distributed_part, innermost

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ProgressCallback",
]


def _check_batches(params: dict[str, Any], process_set: ProcessSet) -> None:
    """Raise on every rank where the ranks' epochs differ in length. Collective."""
    mine = (params.get("steps"), params.get("epochs"))
    found = allgather_object(mine, process_set=process_set)
    if any(theirs != found[0] for theirs in found):
        members = process_set.runtime().members
        listed = "; ".join(f"rank {r}: {steps} batches, {epochs} epochs" for r, (steps, epochs) in zip(members, found))
        raise MismatchError(
            f"the ranks would wait for one another: {listed}. Give every rank the same number of both, for instance "
            f"fit(steps_per_epoch={min((s for s, _ in found if s is not None), default=100)})."
        )


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives every rank the root's variables when training begins.

    A model that nobody has built by then (TensorFlow builds it with the first batch) gets them after the first batch,
    in which every rank steps alone: gradients of different weights are never averaged.
    """

    def __init__(self, root_rank: int = 0, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._process_set = process_set
        self._done = False

    @property
    def async_safe(self) -> bool:
        """Whether Keras need not wait for a batch to call what follows it: other backends build models before the first."""
        backend: str = keras.backend.backend()
        return backend != "tensorflow"

    def on_train_begin(self, logs: Any = None) -> None:
        _check_batches(self.params or {}, self._process_set)
        model = self.model
        if self._done:
            return
        if model.built and model.variables:
            if not getattr(model.optimizer, "built", True):
                model.optimizer.build(model.trainable_variables)
            self._broadcast()
        else:
            _stay_alone(model.optimizer, True)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            self._broadcast()
            _stay_alone(self.model.optimizer, False)

    def _broadcast(self) -> None:
        broadcast_global_variables(self.root_rank, self.model, self._process_set)
        self._done = True


def _stay_alone(optimizer: Any, alone: bool) -> None:
    found = distributed_part(optimizer)
    if found is not None:
        found._farandole.stay_alone(alone)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages an epoch's metrics over the ranks, for the callbacks that follow."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_train_begin(self, logs: Any = None) -> None:
        _check_batches(self.params or {}, self._process_set)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (self.params or {}).get("steps") is None:
            _end_epoch_together(self.model.optimizer)
        if logs is not None:
            logs.update(self._averaged({name: _plain(value) for name, value in sorted(logs.items())}))

    def _averaged(self, mine: dict[str, Any]) -> dict[str, Any]:
        found = allgather_object(mine, process_set=self._process_set)
        for rank, theirs in zip(self._process_set.runtime().members, found):
            if theirs.keys() != found[0].keys():
                odd = ", ".join(sorted(theirs.keys() ^ found[0].keys()))
                raise MismatchError(f"rank {rank} has other metrics than the first rank: {odd}. Compile the same model.")
        return {name: sum(theirs[name] for theirs in found) / len(found) for name in mine}


def _plain(value: Any) -> Any:
    """A number; an array where a metric has several, as one a class."""
    array = np.asarray(keras.ops.convert_to_numpy(value), np.float64)
    return array if array.ndim else float(array)


def _end_epoch_together(optimizer: Any) -> None:
    """Epochs of a length nobody knew beforehand end on all ranks, or with an error."""
    found = distributed_part(optimizer)
    if found is not None:
        found._farandole.end()


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the initial rate, epoch by epoch (`staircase`) or batch by batch.

    A number m as `multiplier` means m**(epoch - start_epoch).
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise SettingsError("initial_lr: give the rate that the multiplier applies to")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._factor = multiplier if callable(multiplier) else _power(float(multiplier), start_epoch)
        self._epoch = 0
        self._momentum: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise SettingsError(f"{type(self).__name__}: nobody knows how long an epoch is; give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._restore_momentum()
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._adjust(self._epoch)
        elif not self.staircase:
            self._adjust(self._epoch + batch / (self.steps_per_epoch or 1))

    def _restore_momentum(self) -> None:
        """Not at the end of a batch: Keras would wait for every batch's metrics to call it."""
        if self._momentum is not None:
            _with_momentum(self.model.optimizer).momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._restore_momentum()
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, rate = float(optimizer.learning_rate), self.initial_lr * self._factor(epoch)
        optimizer.learning_rate = rate
        holder = _with_momentum(optimizer)
        if self.momentum_correction and holder is not None and before > 0 and rate != before:
            self._correct(holder, rate / before)

    def _correct(self, holder: Any, ratio: float) -> None:
        """Keep past gradients at the weight they had before the rate changed, for one batch."""
        if keras.backend.backend() == "torch":
            self._momentum, holder.momentum = holder.momentum, holder.momentum * ratio
        else:
            _say_momentum_is_compiled()


def _power(base: float, start: int) -> Callable[[float], float]:
    return lambda epoch: float(base ** (epoch - start))


def _with_momentum(optimizer: Any) -> Any:
    """The optimizer, or the one in it, that has a momentum; None where none has."""
    holder = innermost(optimizer)
    return holder if getattr(holder, "momentum", None) else None


_said = False


def _say_momentum_is_compiled() -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(
            f"momentum_correction has no effect with {keras.backend.backend()}: Keras compiles the momentum into "
            "the training step. Pass momentum_correction=False.",
            stacklevel=4,
        )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from initial_lr / ranks to initial_lr, the already scaled rate, over the first epochs."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        size = process_set.runtime().transport.size

        def factor(epoch: float) -> float:
            # After the last batch of an epoch, as Horovod does: the warm-up ends at the full rate.
            reached = epoch + 1 / (self.steps_per_epoch or 1)
            return (reached * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr, factor, 0, warmup_epochs, False, momentum_correction, steps_per_epoch
        )
        self.verbose = verbose
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        ends = self.end_epoch is not None and epoch == self.end_epoch - 1
        if self.verbose and ends and _is_first(self._process_set):
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.", flush=True)


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, on the first rank of the set. Stands after MetricAverageCallback."""

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, mode=mode, save_freq=save_freq
        )
        self._process_set = process_set

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if _is_first(self._process_set):
            super()._save_model(*args, **kwargs)


class ProgressCallback(keras.callbacks.ProgbarLogger):
    """Keras' progress display, on the first rank of the set only; it takes the place of fit()'s own."""

    async_safe = True
    """Keras does not wait for a batch to call its own display, either."""

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params if _is_first(self._process_set) else {**params, "verbose": 0})


def _is_first(process_set: ProcessSet) -> bool:
    return process_set.runtime().transport.rank == 0
