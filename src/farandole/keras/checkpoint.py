"""Checkpoints of a training with Keras' fit(), on each of its backends, which can read one another's.

    checkpointer = hvd.checkpoint.Checkpointer("run1", model, callbacks=[plateau, stopping])
    model.fit(x, y, initial_epoch=checkpointer.restore(), epochs=100, callbacks=[plateau, stopping, checkpointer])

fit() can begin with any epoch, but not in the middle of one. A training that goes on from the middle draws the epoch's
order once more and lets the batches pass that were trained on before.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from farandole.checkpoint.checkpointer import Checkpointer as _Checkpointer
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.parts import Part, Progress
from farandole.checkpoint.timing import When
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.errors import CheckpointError, SettingsError
from farandole.keras.parts import innermost
from farandole.keras.state import (
    AddedUp,
    AllRandom,
    CallbackState,
    Differing,
    KerasRandom,
    ModelVariables,
    OptimizerVariables,
    OwnVariables,
    Variables,
    batches_per_step,
    described,
    fetch,
)

__all__ = ["Checkpointer", "Keep", "When"]

_NOTHING_LEFT = sys.maxsize
"""An epoch beyond all that fit() could be asked for."""
_VALIDATION = "val_"
"""How Keras begins the names of what validation has shown."""


class Checkpointer(keras.callbacks.Callback):
    """Saves model, optimizer, random numbers and what `callbacks` know (early stopping, plateaus) during fit().

    The last of fit()'s callbacks, made after compile() and before each fit(). `own` is what each rank has its own of,
    other parts are alike on all ranks. Collective: every rank of the set makes it and trains with it.
    """

    def __init__(
        self,
        folder: str | Path,
        model: Any,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        when: When | None = None,
        keep: Keep | None = None,
        background: bool = False,
        own: Mapping[str, Any] | None = None,
        process_set: ProcessSet = global_process_set,
        **parts: Any,
    ) -> None:
        super().__init__()
        _build_optimizer(model)
        self._size = process_set.runtime().transport.size
        self._knowing = {f"callback {i} {type(c).__name__}": CallbackState(c) for i, c in enumerate(callbacks)}
        self._variables, self._added_up = OwnVariables(model), AddedUp(model)
        self._fit, self._epoch = _Fit(model), _Epoch(model)
        self._again: list[tuple[Part, Any]] = []
        self._passing = self._goes_on_at = 0
        self._ended = self._missed_metric = False
        self._metric = "" if keep is None else keep.metric
        alike: dict[str, Part] = {"variables": self._variables, **self._knowing}
        self._checkpointer = _Checkpointer(
            folder,
            {
                "model": ModelVariables(model),
                "optimizer": OptimizerVariables(model),
                "fit": self._fit,
                **self._knowing,
                **parts,
            },
            own={
                "keras": KerasRandom(),
                **{name: Differing(name, part, process_set) for name, part in alike.items()},
                "added up": self._added_up,
                "epoch": self._epoch,
                **(own or {}),
            },
            when=when or When(epochs=1),
            keep=keep,
            background=background,
            process_set=process_set,
        )

    @property
    def progress(self) -> Progress:
        return self._checkpointer.progress

    @property
    def came_from(self) -> Path | None:
        """The checkpoint that training has gone on from."""
        return self._checkpointer.came_from

    @property
    def saved_at(self) -> int | None:
        """The step of the newest checkpoint of this training; None where there is none."""
        return self._checkpointer.saved_at

    @property
    def passing(self) -> bool:
        """Whether batches are let pass that were trained on before."""
        return self._passing > 0

    def restore(self) -> int:
        """Go on from the newest checkpoint that is whole; the epoch to begin with, 0 where there is none. Collective."""
        manifest = self._checkpointer.restore()
        if manifest is None:
            return 0
        progress = self.progress
        self._fit.follow_batches_per_step(self._checkpointer.say)
        parts: list[Part] = [*self._knowing.values(), self._variables, self._added_up, AllRandom()]
        self._again = [(part, copy.deepcopy(part.state_dict())) for part in parts]
        self._goes_on_at = progress.epoch
        self._fit.say_backend(self._checkpointer.say)
        if progress.step_in_epoch and manifest.ranks != self._size:
            self._checkpointer.say(f"epoch {progress.epoch + 1} begins again: other ranks have other batches")
            progress.step_in_epoch = 0
        self._passing = progress.step_in_epoch
        if self._fit.was_stopped and not self._passing:
            self._checkpointer.say(f"a callback has ended this training after {progress.epoch} epochs: nothing is left to do")
            return _NOTHING_LEFT
        return progress.epoch

    def save(self) -> None:
        """Save now, and return when it is safe on disk. Collective."""
        self._checkpointer.save(_numbers(self._epoch.logs))

    def on_train_begin(self, logs: Any = None) -> None:
        if self._ended:
            raise SettingsError("a Checkpointer serves one fit(): make a new one for the next")
        # fit() has drawn random numbers by now, its callbacks have forgotten what they knew, and one of them may have
        # made variables alike.
        self._load_again()
        self._fit.note_rates()

    def _load_again(self) -> None:
        for part, state in self._again:
            part.load_state_dict(copy.deepcopy(state))
        for known in self._knowing.values():
            known.trains()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self.progress.epoch:
            raise SettingsError(
                f"fit() begins with epoch {epoch}, the checkpoint with {self._goes_on_at}: pass "
                "initial_epoch=checkpointer.restore() to fit()"
            )
        if self._passing:
            self._epoch.draw_again()
            _let_pass(self.model, self._passing, self._epoch.logs)
        else:
            self._epoch.begin()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._passing:
            self._passing -= 1
            if not self._passing:
                self._arrive()
            return
        self._epoch.logs = _numbers(logs)
        self._checkpointer.step(self._epoch.logs)

    def _arrive(self) -> None:
        """Where the checkpoint was saved: what callbacks may have done to passing batches is undone."""
        fetch(self.model)
        self._load_again()
        self._fit.load_rates()
        if not self._epoch.load_metrics():
            self._checkpointer.say("the metrics of this epoch are of its rest: the checkpoint has others")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._passing:
            raise CheckpointError(
                f"the checkpoint was saved after step {self.progress.step_in_epoch} of an epoch, of which this fit() has "
                f"{self.progress.step_in_epoch - self._passing}: train with the batches it was made with"
            )
        metrics = _numbers(logs)
        self._check_metric(metrics)
        # Only the end of an epoch knows what validation has shown.
        self._checkpointer.end_epoch(metrics, due=self._metric.startswith(_VALIDATION) and self._metric in metrics)

    def _check_metric(self, metrics: Mapping[str, float]) -> None:
        if not self._metric or self._metric in metrics:
            return
        validated = any(name.startswith(_VALIDATION) for name in metrics)
        if validated or not self._metric.startswith(_VALIDATION):
            raise SettingsError(f"Keep(metric={self._metric!r}): an epoch of this fit() has {', '.join(metrics)}")
        if not self._missed_metric:
            self._missed_metric = True
            self._checkpointer.say(f"epoch {self.progress.epoch + 1} had no validation: the best is one of those that have {self._metric}")

    def on_train_end(self, logs: Any = None) -> None:
        self._ended = True
        self.close()

    def close(self) -> None:
        """Wait for what is being saved, and let others use the folder; fit() does it unless it fails. Collective."""
        self._checkpointer.close()


def _build_optimizer(model: Any) -> None:
    if getattr(model, "optimizer", None) is None:
        raise SettingsError("the model has no optimizer yet: call compile() before the checkpointer is made")
    if not model.built:
        raise SettingsError("the model has no variables yet: begin it with keras.Input(shape), or call model.build(shape)")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}


def _let_pass(model: Any, count: int, logs: dict[str, float]) -> None:
    """Take the next `count` batches (calls of the training function) for done."""
    train, left = model.train_function, count

    def passed(*given: Any) -> Any:
        nonlocal left
        left -= 1
        if not left:
            model.train_function = train
        if not isinstance(given[-1], list):
            _take(model, given[-1])
        elif keras.backend.backend() == "tensorflow":
            _take(model, iter(given[-1]))  # batches at hand: no more than one call's
        return logs if len(given) == 1 else (logs, given[0])  # JAX also hands the state through

    model.train_function = passed


def _take(model: Any, batches: Any) -> None:
    """TensorFlow's and JAX's training functions take batches themselves; TensorFlow's makes the metrics with the first."""
    with contextlib.suppress(StopIteration):
        for _ in range(model.steps_per_execution):
            model._symbolic_build(data_batch=next(batches))


class _Fit:
    """What else is the same on all ranks."""

    def __init__(self, model: Any) -> None:
        self.was_stopped = False
        self._model = model
        self._backend = keras.backend.backend()
        self._batches = batches_per_step(model.optimizer)
        self._rates = Variables(model, lambda: [v for v in model.optimizer.variables if not v.shape], "optimizer")
        self._noted_rates: Any = None

    def state_dict(self) -> Any:
        return {
            "backend": keras.backend.backend(),
            "stopped": bool(getattr(self._model, "stop_training", False)),
            "batches": batches_per_step(self._model.optimizer),
        }

    def load_state_dict(self, state: Any) -> None:
        self._backend, self.was_stopped, self._batches = state["backend"], state["stopped"], state.get("batches", 1)

    def follow_batches_per_step(self, say: Callable[[str], None]) -> None:
        """Keras counts batches where gradients are added up, and what goes by that count goes by steps."""
        here = batches_per_step(self._model.optimizer)
        if self._batches != here:
            count = innermost(self._model.optimizer)._iterations
            count.assign(int(keras.ops.convert_to_numpy(count)) // self._batches * here)
            say(f"a step was made after {self._batches} batches, and is after {here}: gradients added up since the last are left out")

    def note_rates(self) -> None:
        self._noted_rates = copy.deepcopy(self._rates.state_dict())

    def load_rates(self) -> None:
        """The rate, and whatever else of the optimizer is one number."""
        self._rates.load_state_dict(self._noted_rates)

    def say_backend(self, say: Callable[[str], None]) -> None:
        here = keras.backend.backend()
        if self._backend != here:
            say(f"it was saved by Keras on {self._backend}, this is Keras on {here}: results differ by rounding and random numbers")


class _Epoch:
    """Where a rank is in an epoch."""

    def __init__(self, model: Any) -> None:
        self.logs: dict[str, float] = {}
        self._metrics = Variables(model, lambda: model.metrics_variables, "model")
        self._random = AllRandom()
        self._drawn_from: Any = None
        self._loaded_metrics: Any = None

    def state_dict(self) -> Any:
        return {"random": self._drawn_from, "logs": self.logs, "metrics": self._metrics.state_dict()}

    def load_state_dict(self, state: Any) -> None:
        self._drawn_from, self.logs, self._loaded_metrics = state["random"], state["logs"], state["metrics"]

    def begin(self) -> None:
        """The order of its batches is about to be drawn."""
        self._drawn_from = self._random.state_dict()

    def draw_again(self) -> None:
        if self._drawn_from is not None:
            self._random.load_state_dict(self._drawn_from)

    def load_metrics(self) -> bool:
        """What the epoch has shown so far; False where the model has other metrics."""
        state = self._loaded_metrics
        if state is None or self._metrics.misfits(described(state)):
            return False
        self._metrics.load_state_dict(state)
        return True
