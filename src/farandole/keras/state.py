"""What a training with Keras is made of, as parts of a checkpoint that each backend can read.

Variables go by their order: names depend on what else a process has built. Integers change their type with the backend.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import ml_dtypes  # noqa: F401 - NumPy learns the names bfloat16 and float8_... from it
import numpy as np

from farandole.checkpoint.generators import NumpyRandom, PythonRandom
from farandole.checkpoint.parts import Part
from farandole.checkpoint.tree import ArrayInfo, Tensor, flatten, unflatten, without_tensors
from farandole.checksum import crc32
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.collectives import broadcast_object
from farandole.comm.named.process_sets import ProcessSet
from farandole.errors import CheckpointError
from farandole.keras.optimizer import local_variables
from farandole.keras.parts import innermost
from farandole.keras.private.on_all import seed_generator

__all__ = [
    "AddedUp",
    "AllRandom",
    "CallbackState",
    "Differing",
    "KerasRandom",
    "ModelVariables",
    "OptimizerVariables",
    "OwnVariables",
    "Variables",
    "batches_per_step",
    "described",
    "fetch",
]


def fetch(model: Any) -> None:
    """On JAX the state of a training is not in the variables while fit() runs."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


class Variables:
    """Some of a model's, which `found` lists."""

    def __init__(self, model: Any, found: Callable[[], Sequence[Any]], what: str) -> None:
        self._model, self._found, self._what = model, found, what

    def state_dict(self) -> Any:
        fetch(self._model)
        return {name: Tensor(_array(variable)) for name, variable in self._named()}

    def load_state_dict(self, state: Any) -> None:
        for tensor, (_, variable) in zip(state.values(), self._named()):
            variable.assign(tensor.array.astype(_dtype(variable), copy=False))

    def misfits(self, state: Any) -> list[str]:
        here = [(name, ArrayInfo(tuple(v.shape), str(v.dtype))) for name, v in self._named()]
        there = [(name, tensor.array) for name, tensor in state.items()]
        found = [
            f"{name} is {saved} in the checkpoint, {own_name} is {own} in the {self._what}"
            for (name, saved), (own_name, own) in zip(there, here)
            if not _fits(saved, own)
        ]
        if len(here) != len(there):
            found.append(f"it has {len(there)} variables in the checkpoint, {len(here)} in the {self._what}")
        return found

    def _named(self) -> list[tuple[str, Any]]:
        """By path, which may not be unique."""
        variables = self._found()
        seen: dict[str, int] = {}
        for variable in variables:
            seen[variable.path] = seen.get(variable.path, 0) + 1
        return [(v.path if seen[v.path] == 1 else f"{v.path}#{i}", v) for i, v in enumerate(variables)]


class OptimizerVariables(Variables):
    """An optimizer's, without the gradients it adds up, which are each rank's own."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, lambda: _alike(model.optimizer), "optimizer")


class AddedUp:
    """Gradients of batches since the last step. They are no use to an optimizer that steps after another number of batches."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def state_dict(self) -> Any:
        fetch(self._model)
        inner = innermost(self._model.optimizer)
        steps = batches_per_step(self._model.optimizer)
        under_way = _array(inner._iterations) % steps != 0
        return {"batches": steps, "gradients": [Tensor(_array(v)) for v in _accumulators(inner)] if under_way else []}

    def load_state_dict(self, state: Any) -> None:
        held = _accumulators(innermost(self._model.optimizer))
        fits = state["batches"] == batches_per_step(self._model.optimizer) and len(state["gradients"]) == len(held)
        for i, variable in enumerate(held):
            found = state["gradients"][i].array if fits else np.zeros(variable.shape)
            variable.assign(found.astype(_dtype(variable), copy=False))


def batches_per_step(optimizer: Any) -> int:
    return int(innermost(optimizer).gradient_accumulation_steps or 1)


def _accumulators(inner: Any) -> list[Any]:
    return list(getattr(inner, "_accumulated_gradients", []))


def _alike(optimizer: Any) -> list[Any]:
    own = {id(v) for v in _accumulators(innermost(optimizer))}
    return [v for v in optimizer.variables if id(v) not in own]


class OwnVariables(Variables):
    """Those that may not be alike on all ranks: seeds of dropout, running means, layers that are left to each rank."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, self._of_ranks, "model")

    def _of_ranks(self) -> list[Any]:
        optimizer, local = self._model.optimizer, local_variables(self._model.optimizer)
        # Nobody says which of the optimizer's belong to which layer.
        return [*self._model.non_trainable_variables, *local, *(_alike(optimizer) if local else [])]

    def _named(self) -> list[tuple[str, Any]]:
        """By number: a rank has some of them only."""
        return [(str(i), variable) for i, variable in enumerate(self._found())]


class ModelVariables(Variables):
    """All of a model's. Weights that are no numbers any more are not saved: they would push out those that were."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, lambda: model.variables, "model")

    def check_before_save(self) -> None:
        fetch(self._model)
        bad = [v.path for v in self._model.trainable_variables if not _is_finite(_array(v))]
        if bad:
            raise CheckpointError(
                f"{bad[0]}, one of {len(bad)} variables of the model, has values that are no numbers any more: nothing was "
                "saved, and the checkpoint before stays the newest"
            )


def _is_finite(array: AnyArray) -> bool:
    if not np.issubdtype(array.dtype, np.inexact) and array.dtype.kind != "V":
        return True
    # Infinities and what is no number show in a sum, which is faster than to look at each of them.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def described(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state as `misfits` takes it."""
    return {name: Tensor(ArrayInfo(t.array.shape, t.array.dtype.name)) for name, t in state.items()}


def _fits(saved: ArrayInfo, own: ArrayInfo) -> bool:
    both_count = "int" in saved.dtype and "int" in own.dtype
    return tuple(saved.shape) == tuple(own.shape) and (saved.dtype == own.dtype or both_count)


def _dtype(variable: Any) -> np.dtype[Any]:
    return np.dtype(str(variable.dtype))


def _array(variable: Any) -> AnyArray:
    # torch's bfloat16 comes as float32.
    array: AnyArray = np.asarray(keras.ops.convert_to_numpy(variable)).astype(_dtype(variable), copy=False)
    return array


class Differing:
    """What a rank has otherwise than the first one, of a part that is saved once for all of them."""

    def __init__(self, name: str, part: Part, process_set: ProcessSet) -> None:
        self._name, self._part, self._set = name, part, process_set

    def state_dict(self) -> Any:
        """Collective."""
        flat = flatten(self._part.state_dict())
        sums = {name: crc32(array.tobytes()) for name, array in flat.arrays.items()}
        root = self._set.runtime().members[0]
        told = broadcast_object((flat.skeleton, sums), root, f"checkpoint.{self._name}", self._set)
        skeleton, theirs = told
        return {
            "skeleton": None if flat.skeleton == skeleton else flat.skeleton,
            "arrays": {name: Tensor(array) for name, array in flat.arrays.items() if sums[name] != theirs.get(name)},
        }

    def load_state_dict(self, state: Any) -> None:
        """After the part itself."""
        flat = flatten(self._part.state_dict())
        own = {name: tensor.array for name, tensor in state["arrays"].items()}
        skeleton = flat.skeleton if state["skeleton"] is None else state["skeleton"]
        self._part.load_state_dict(unflatten(skeleton, flat.arrays | own))


class CallbackState:
    """What a callback has come to know; its settings, by which it was made, stay those of the script."""

    def __init__(self, callback: keras.callbacks.Callback) -> None:
        self._callback = callback
        kinds = [kind for kind in type(callback).__mro__ if "__init__" in vars(kind)]
        self._settings = {name for kind in kinds for name in inspect.signature(vars(kind)["__init__"]).parameters}
        self._settings |= {"params", "_model"}
        self._only: set[str] | None = None

    def state_dict(self) -> Any:
        known = {name: value for name, value in vars(self._callback).items() if name not in self._settings and _is_state(value)}
        return known if self._only is None else {name: value for name, value in known.items() if name in self._only}

    def load_state_dict(self, state: Any) -> None:
        """Until `trains()`, nothing else is part of the state: a callback that does not train yet lacks what it will have."""
        self._only = set(state)
        for name, value in without_tensors(state).items():
            setattr(self._callback, name, value)

    def trains(self) -> None:
        self._only = None


def _is_state(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_state(item) for item in value)
    if isinstance(value, dict):
        return all(_is_state(part) for pair in value.items() for part in pair)
    return value is None or isinstance(value, bool | int | float | str | np.ndarray | np.generic)


class KerasRandom:
    """Keras' own random numbers, and those of torch where it is the backend."""

    def state_dict(self) -> Any:
        generator = seed_generator()
        return {"seed": None if generator is None else Tensor(_array(generator.state)), "torch": _torch_state()}

    def load_state_dict(self, state: Any) -> None:
        generator = None if state["seed"] is None else seed_generator(make=True)
        if generator is not None:
            generator.state.assign(state["seed"].array.astype(_dtype(generator.state)))
        if state["torch"] is not None and _torch() is not None:
            from farandole.torch.checkpoint import TorchRandom

            TorchRandom().load_state_dict(state["torch"])


def _torch() -> Any:
    return sys.modules.get("torch") if keras.backend.backend() == "torch" else None


def _torch_state() -> Any:
    if _torch() is None:
        return None
    from farandole.torch.checkpoint import TorchRandom

    return TorchRandom().state_dict()


class AllRandom:
    """The random numbers of Python, NumPy and Keras together."""

    def __init__(self) -> None:
        self._parts: Mapping[str, Part] = {"python": PythonRandom(), "numpy": NumpyRandom(), "keras": KerasRandom()}

    def state_dict(self) -> Any:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Any) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
