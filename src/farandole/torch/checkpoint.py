"""Checkpoints of a training with PyTorch: models, optimizers, schedules, scalers, samplers and random numbers.

    checkpointer = hvd.checkpoint.Checkpointer(
        "run1", model=model, optimizer=optimizer, scheduler=scheduler, when=hvd.checkpoint.When(seconds=600)
    )
    checkpointer.restore()

A save in the background does not copy weights and optimizer state at once: they stay as they are until the
optimizer's next step, which copies what has not been read by then. Forward and backward hide the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from farandole.checkpoint.checkpointer import Checkpointer as _Checkpointer
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.parts import Part, as_part
from farandole.checkpoint.timing import When
from farandole.checkpoint.tree import ArrayInfo, Tensor, replaced
from farandole.checksum import crc32
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.named.collectives import broadcast_object
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.errors import CheckpointError
from farandole.torch.tensors import as_array, as_tensor

__all__ = ["Checkpointer", "Keep", "TorchRandom", "When", "with_arrays", "with_tensors"]

_BY_BITS = {
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
"""Types that travel between torch and NumPy as bytes."""
_BY_VALUE = {torch.complex64, torch.uint16, torch.uint32, torch.uint64}


class Checkpointer(_Checkpointer):
    """Saves what is given by name, alike on all ranks: modules, optimizers, dicts, whatever has state_dict().

    `own` is what each rank has its own of; the random numbers of Python, NumPy and torch are part of it. With
    `background`, saves that are due are made while training goes on. Collective: every rank of the set makes it
    and calls its methods.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        when: When | None = None,
        keep: Keep | None = None,
        background: bool = False,
        own: Mapping[str, Any] | None = None,
        process_set: ProcessSet = global_process_set,
        **parts: Any,
    ) -> None:
        optimizers = [part for part in parts.values() if isinstance(part, torch.optim.Optimizer)]
        models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        per_rank = {"torch": TorchRandom(), **{f"{name} buffers": _Buffers(m, process_set) for name, m in models.items()}}
        super().__init__(
            folder,
            {name: _part(name, value, optimizers) for name, value in parts.items()},
            own=per_rank | {name: _part(name, value, []) for name, value in (own or {}).items()},
            when=when,
            keep=keep,
            background=background,
            process_set=process_set,
        )
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(_settles(weakref.ref(self)))


def _settles(reference: weakref.ref[Checkpointer]) -> Any:
    def settle(*_: object) -> None:
        checkpointer = reference()
        if checkpointer is not None:
            checkpointer.settle()

    return settle


def _part(name: str, value: Any, optimizers: list[torch.optim.Optimizer]) -> Part:
    if isinstance(value, torch.Generator):
        return _Generator(value)
    if isinstance(value, torch.nn.Module):
        return _Model(value, optimizers)
    if isinstance(value, torch.optim.Optimizer):
        return _Optimizer(value, optimizers)
    return _Stateful(as_part(name, value), optimizers)


class _Stateful:
    """Anything with a state that may have tensors in it."""

    def __init__(self, value: Any, optimizers: list[torch.optim.Optimizer]) -> None:
        self._value = value
        self._optimizers = optimizers

    def state_dict(self) -> Any:
        state = self._value.state_dict()
        held = {_place(tensor) for optimizer in self._optimizers for tensor in _stepped(optimizer)}
        return replaced(state, lambda value: _taken(value, held) if isinstance(value, torch.Tensor) else value)

    def load_state_dict(self, state: Any) -> None:
        self._value.load_state_dict(with_tensors(state))


class _Model(_Stateful):
    def misfits(self, state: Any) -> list[str]:
        here = {name: _info(tensor) for name, tensor in self._value.state_dict().items() if _is_tensor(tensor)}
        there = {name: tensor.array for name, tensor in state.items() if isinstance(tensor, Tensor)}
        return [
            f"{name} is {there.get(name, 'not')} in the checkpoint, {here.get(name, 'not')} in the model"
            for name in dict.fromkeys([*there, *here])
            if there.get(name) != here.get(name)
        ]


class _Buffers:
    """What is not alike on all ranks although it is part of the model: the running means of batch normalisation."""

    def __init__(self, model: torch.nn.Module, process_set: ProcessSet) -> None:
        self._model = model
        self._set = process_set

    def state_dict(self) -> Any:
        """Those that differ from the first rank's. Collective."""
        here = {name: _array(buffer) for name, buffer in self._saved()}
        sums = {name: crc32(array.tobytes()) for name, array in here.items()}
        first = broadcast_object(sums, self._set.runtime().members[0], "checkpoint.buffers", self._set)
        return {name: Tensor(array) for name, array in here.items() if sums[name] != first.get(name)}

    def load_state_dict(self, state: Any) -> None:
        with torch.no_grad():
            for name, buffer in self._saved():
                if name in state:
                    buffer.copy_(with_tensors(state[name]))

    def _saved(self) -> list[tuple[str, torch.Tensor]]:
        kept = self._model.state_dict()
        return [(name, buffer) for name, buffer in self._model.named_buffers() if name in kept]


class _Optimizer(_Stateful):
    def check_before_save(self) -> None:
        reducer = getattr(self._value, "_farandole_reducer", None)
        if reducer is not None and reducer.pending:
            raise CheckpointError(
                "the optimizer has gradients on their way (ksteps), which a checkpoint would lose: call optimizer.drain() "
                "before save(), and before the step() of a checkpointer that saves by itself"
            )

    def misfits(self, state: Any) -> list[str]:
        here = [len(group["params"]) for group in self._value.param_groups]
        there = [len(group["params"]) for group in state["param_groups"]]
        if here == there:
            return []
        return [f"its groups have {there} parameters in the checkpoint, {here} in the optimizer"]


class TorchRandom:
    """torch's own random numbers, on the host and on every device."""

    def state_dict(self) -> Any:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {"cpu": _taken(torch.get_rng_state(), set()), "cuda": [_taken(state, set()) for state in cuda]}

    def load_state_dict(self, state: Any) -> None:
        torch.set_rng_state(with_tensors(state["cpu"]))
        if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(with_tensors(state["cuda"]))


class _Generator:
    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        return {"state": _taken(self._generator.get_state(), set())}

    def load_state_dict(self, state: Any) -> None:
        self._generator.set_state(with_tensors(state["state"]))


Place = tuple[int, int]


def _place(tensor: torch.Tensor) -> Place:
    """Where its memory lies."""
    return tensor.data_ptr(), tensor.nbytes


def _stepped(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """What an optimizer's step changes, and nothing else is expected to."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    states = [value for state in optimizer.state.values() for value in state.values() if _is_tensor(value)]
    return [*weights, *states]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _taken(tensor: torch.Tensor, held: set[Place]) -> Tensor:
    version = tensor._version
    stays = _place(tensor) in held and tensor.numel() > 0 and tensor.device.type == "cpu"
    return Tensor(_array(tensor), (lambda: tensor._version == version) if stays else None)


def _array(tensor: torch.Tensor) -> AnyArray:
    if tensor.layout != torch.strided:
        raise CheckpointError(f"a tensor of layout {tensor.layout} cannot be saved; convert it with to_dense()")
    plain = tensor.detach().cpu()
    if plain.dtype in _BY_BITS:
        return plain.contiguous().view(torch.uint8).numpy().view(_BY_BITS[plain.dtype])
    return plain.numpy() if plain.dtype in _BY_VALUE else as_array(plain)


def with_arrays(state: Any) -> Any:
    """A state as a checkpoint takes it."""
    return replaced(state, lambda value: _taken(value, set()) if _is_tensor(value) else value)


def with_tensors(state: Any) -> Any:
    """A state as torch takes it."""
    return replaced(state, lambda value: _tensor(value.array) if isinstance(value, Tensor) else value)


def _tensor(array: AnyArray) -> torch.Tensor:
    for dtype, bits in _BY_BITS.items():
        if array.dtype == bits:
            return torch.from_numpy(array.view(np.uint8)).view(dtype)
    return as_tensor(array)


def _info(tensor: torch.Tensor) -> ArrayInfo:
    array = _array(tensor)
    return ArrayInfo(array.shape, array.dtype.name)
