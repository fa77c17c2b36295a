"""Keras on JAX: a compiled step calls back with its own buffers, and gradients are reduced where they lie.

JAX's usual callbacks copy buffers to arrays on the device's own threads, and wait for ever where a process has one
core and that thread is the one that calls. `buffer_callback` hands out the memory itself. Very large gradients are
reduced between two compiled parts of a step instead: see private/on_jax.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from farandole.comm.gradients.buffers import BufferReducer, BufferSettings
from farandole.comm.gradients.interface import Entry
from farandole.errors import SettingsError

try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError as error:
    raise SettingsError(
        f"JAX {jax.__version__} has no buffer_callback, which farandole.keras needs. Type: pip install 'jax>=0.7'"
    ) from error

__all__ = ["KEEPS_ABSENT", "make_reducer", "prepare", "set_threads", "when_due"]

KEEPS_ABSENT = False


class StepReducer:
    """Reduces the gradients of some variables. Collective to make: every rank of the set does."""

    alone = False
    """Keras builds models before they train on JAX: there is no step with different weights."""
    results_used = False
    """Whether the step that is traced is known to use the results, once."""

    def __init__(self, label: str, name: str, variables: Sequence[Any], settings: BufferSettings) -> None:
        if jax.default_backend() != "cpu":
            raise SettingsError(
                f"JAX computes on {jax.default_backend()!r}; gradients are reduced in host memory. Set JAX_PLATFORMS=cpu."
            )
        self._variables = list(variables)
        self._label, self._name, self._settings = label, name, settings
        self._opened: BufferReducer | None = None

    def _open(self, *, in_place: bool) -> BufferReducer:
        """How the first gradients come decides where results go. Collective the first time."""
        if self._opened is None:
            # JAX makes float64 variables float32 where it is not told otherwise (JAX_ENABLE_X64).
            types = [jax.dtypes.canonicalize_dtype(v.dtype).name for v in self._variables]
            entries = [Entry(v.path, dtype, tuple(v.shape)) for v, dtype in zip(self._variables, types)]
            self._opened = BufferReducer(self._label, self._name, entries, self._settings, in_place=in_place)
        return self._opened

    @property
    def _buffers(self) -> BufferReducer:
        assert self._opened is not None, "a reducer is made for gradients that come at once"
        return self._opened

    def reduce_between(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks, good until the next are reduced. Collective."""
        found = self._open(in_place=False).reduce([np.asarray(g) for g in grads])
        # In the same memory where it is aligned; and bound to no device, as what Keras has: XLA compiles a step once.
        return [jax.device_put(array) for array in found]

    def reduce(self, grads: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks, as a part of the compiled step. Collective when it runs."""
        buffers = self._open(in_place=True)
        # As optimizers do: a step of the user's own may hand over gradients of another type than the variable's.
        grads = [jax.numpy.asarray(g, entry.dtype) for g, entry in zip(grads, buffers.entries)]
        if buffers.changes_nothing:
            return grads
        call = buffer_callback(
            self._run,
            [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in grads],
            # JAX steps several times as fast without, and XLA may then leave a call out whose results nobody uses.
            has_side_effect=not self.results_used,
            input_output_aliases={i: i for i in range(len(grads))},
        )
        reduced: list[Any] = call(*grads)
        return reduced

    def _run(self, _: Any, outs: Sequence[Any], *grads: Any) -> None:
        self._buffers.reduce([np.asarray(g) for g in grads], [np.asarray(out) for out in outs])

    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        jax.block_until_ready([v.value for v in self._variables])  # the last step, which may still be under way
        self._buffers.end()

    def statistics(self) -> dict[str, float]:
        return self._buffers.summary()


make_reducer = StepReducer


def prepare() -> None:
    """Let Keras make steps of two parts for models that need them."""
    from farandole.keras.private import on_jax

    on_jax.offer()


def when_due(is_due: Any, reduce: Any, grads: list[Any]) -> list[Any]:
    """Reduce accumulated gradients: Keras asks for it in every step, and drops what was not due."""
    reduced: list[Any] = jax.lax.cond(is_due(), reduce, lambda held: held, grads)
    return reduced


def set_threads() -> None:
    """JAX takes its threads from the cores the process may use, which the launcher has bound."""
