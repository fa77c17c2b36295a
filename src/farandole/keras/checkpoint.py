"""Checkpoints of a training with Keras' fit(), on each of its backends, which can read one another's.

    checkpoint = hvd.checkpoint.Checkpoint("run1", model, callbacks=[plateau, stopping])
    model.fit(x, y, initial_epoch=checkpoint.restore(), epochs=100, callbacks=[..., plateau, stopping, checkpoint])

fit() can begin with any epoch, but not in the middle of one: from a checkpoint of the end of an epoch training goes on
bit for bit; where one was saved in the middle (a signal, `When(seconds=...)`), that epoch begins again.
"""

from __future__ import annotations

import inspect
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import ml_dtypes  # noqa: F401 - NumPy learns the names bfloat16 and float8_... from it
import numpy as np

from farandole.checkpoint.checkpointer import Checkpointer
from farandole.checkpoint.generators import NumpyRandom, PythonRandom
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.parts import Part, Progress
from farandole.checkpoint.timing import When
from farandole.checkpoint.tree import ArrayInfo, Tensor, without_tensors
from farandole.comm.collectives import broadcast_object
from farandole.comm.process_sets import ProcessSet, global_process_set
from farandole.comm.transport import AnyArray
from farandole.errors import SettingsError

__all__ = ["Checkpoint", "Keep", "When"]


class Checkpoint(keras.callbacks.Callback):
    """Saves model, optimizer, random numbers and the state of `callbacks` (early stopping, plateaus) during fit().

    The last of fit()'s callbacks, made after compile() and before each fit(). `own` is what each rank has its own of.
    `when` defaults to the end of every epoch. Collective: every rank of the set makes it and trains with it.
    """

    def __init__(
        self,
        folder: str | Path,
        model: Any,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        own: Mapping[str, Any] | None = None,
        when: When | None = None,
        keep: Keep | None = None,
        background: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        _build_optimizer(model)
        self._own = _OwnVariables(model, process_set)
        self._others = {f"callback {i} {type(c).__name__}": _CallbackState(c) for i, c in enumerate(callbacks)}
        self._numbers: list[tuple[Part, Any]] = []
        self._goes_on_at = 0
        self._ended = False
        self._checkpointer = Checkpointer(
            folder,
            {"model": _Variables(model, "model"), "optimizer": _Variables(model, "optimizer"), **self._others},
            own={"keras": _Random(), "variables": self._own, **(own or {})},
            when=when or When(epochs=1),
            keep=keep,
            background=background,
            process_set=process_set,
        )

    @property
    def progress(self) -> Progress:
        return self._checkpointer.progress

    def restore(self) -> int:
        """Go on from the newest checkpoint that is whole; the epoch to begin with, 0 where there is none. Collective."""
        if self._checkpointer.restore() is not None:
            self._numbers = [(part, part.state_dict()) for part in (PythonRandom(), NumpyRandom(), _Random())]
        progress = self.progress
        if progress.step_in_epoch:
            self._checkpointer.say(f"epoch {progress.epoch} begins again: the checkpoint was saved in the middle of it")
            progress.step_in_epoch = 0
        self._goes_on_at = progress.epoch
        return progress.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        if self._ended:
            raise SettingsError("a Checkpoint serves one fit(): make a new one for the next")
        # fit() has drawn random numbers by now, its callbacks have forgotten what they knew, and one of them may have
        # made variables alike.
        for late in (self._own, *self._others.values()):
            late.load()
        for part, state in self._numbers:
            part.load_state_dict(state)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != self.progress.epoch:
            raise SettingsError(
                f"fit() begins with epoch {epoch}, the checkpoint with {self._goes_on_at}: pass "
                "initial_epoch=checkpoint.restore() to fit()"
            )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._checkpointer.step()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._checkpointer.end_epoch({name: float(value) for name, value in (logs or {}).items()})

    def on_train_end(self, logs: Any = None) -> None:
        self._ended = True
        self._checkpointer.close()


def _build_optimizer(model: Any) -> None:
    if getattr(model, "optimizer", None) is None:
        raise SettingsError("the model has no optimizer yet: call compile() before the checkpoint is made")
    if not model.built:
        raise SettingsError("the model has no variables yet: begin it with keras.Input(shape), or call model.build(shape)")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


class _Variables:
    """Those of a model or of its optimizer, in their order: names depend on what else a process has built."""

    def __init__(self, model: Any, which: str) -> None:
        self._model = model
        self._which = which

    def state_dict(self) -> Any:
        _fetch(self._model)
        return {name: Tensor(_array(variable)) for name, variable in self._named()}

    def load_state_dict(self, state: Any) -> None:
        for tensor, (_, variable) in zip(state.values(), self._named()):
            variable.assign(tensor.array)

    def misfits(self, state: Any) -> list[str]:
        here = [(name, ArrayInfo(tuple(v.shape), str(v.dtype))) for name, v in self._named()]
        there = [(name, tensor.array) for name, tensor in state.items()]
        found = [
            f"{name} is {saved} in the checkpoint, {own_name} is {own} in the {self._which}"
            for (name, saved), (own_name, own) in zip(there, here)
            if saved != own
        ]
        if len(here) != len(there):
            found.append(f"it has {len(there)} variables in the checkpoint, {len(here)} in the {self._which}")
        return found

    def _named(self) -> list[tuple[str, Any]]:
        return _named(self._model.variables if self._which == "model" else self._model.optimizer.variables)


class _OwnVariables:
    """What is not alike on all ranks although it is part of the model: seeds of dropout, running means."""

    def __init__(self, model: Any, process_set: ProcessSet) -> None:
        self._model = model
        self._set = process_set
        self._loaded: dict[str, Any] = {}

    def state_dict(self) -> Any:
        """Those that differ from the first rank's, by number. Collective."""
        _fetch(self._model)
        here = [_array(variable) for variable in self._model.non_trainable_variables]
        sums = [zlib.crc32(array.tobytes()) for array in here]
        first = broadcast_object(sums, self._set.runtime().members[0], "checkpoint.variables", self._set)
        return {str(i): Tensor(array) for i, array in enumerate(here) if sums[i] != first[i]}

    def load_state_dict(self, state: Any) -> None:
        self._loaded = dict(state)

    def load(self) -> None:
        variables = self._model.non_trainable_variables
        for number, tensor in self._loaded.items():
            variables[int(number)].assign(tensor.array)


class _CallbackState:
    """What a callback has come to know; its settings, by which it was made, stay those of the script."""

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        self._callback = callback
        self._settings = {name for kind in type(callback).__mro__ for name in inspect.signature(kind.__init__).parameters}
        self._loaded: dict[str, Any] = {}

    def state_dict(self) -> Any:
        known = vars(self._callback).items()
        return {name: value for name, value in known if name not in self._settings and _is_state(value)}

    def load_state_dict(self, state: Any) -> None:
        self._loaded = dict(without_tensors(state))

    def load(self) -> None:
        for name, value in self._loaded.items():
            setattr(self._callback, name, value)


def _is_state(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_state(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


class _Random:
    """Keras' own random numbers, and those of torch where it is the backend."""

    def state_dict(self) -> Any:
        state = {"seed": Tensor(_array(_seed_generator().state))}
        torch = sys.modules.get("torch") if keras.backend.backend() == "torch" else None
        return state if torch is None else {**state, "torch": Tensor(torch.get_rng_state().numpy())}

    def load_state_dict(self, state: Any) -> None:
        _seed_generator().state.assign(state["seed"].array)
        torch = sys.modules.get("torch") if keras.backend.backend() == "torch" else None
        if torch is not None and "torch" in state:
            torch.set_rng_state(torch.from_numpy(state["torch"].array))


def _seed_generator() -> Any:
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator()


def _fetch(model: Any) -> None:
    """On JAX the state of a training is not in the variables while fit() runs."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _named(variables: Sequence[Any]) -> list[tuple[str, Any]]:
    """By path, which may not be unique."""
    seen: dict[str, int] = {}
    for variable in variables:
        seen[variable.path] = seen.get(variable.path, 0) + 1
    return [(v.path if seen[v.path] == 1 else f"{v.path}#{i}", v) for i, v in enumerate(variables)]


def _array(variable: Any) -> AnyArray:
    # torch's bfloat16 comes as float32.
    array: AnyArray = np.asarray(keras.ops.convert_to_numpy(variable)).astype(np.dtype(str(variable.dtype)), copy=False)
    return array
