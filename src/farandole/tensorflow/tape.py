"""DistributedGradientTape: tf.GradientTape whose gradients are those of all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from farandole.comm.gradients.buffers import BufferSettings
from farandole.comm.gradients.opening import reduction, taking_part
from farandole.comm.gradients.team import Team
from farandole.comm.named.compression import Compression, Compressor, wire_of
from farandole.comm.named.process_sets import ProcessSet, SetRuntime, global_process_set
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.tensorflow.gradients import GraphReducer

__all__ = ["DistributedGradientTape", "PartialDistributedGradientTape"]

_reducers: weakref.WeakKeyDictionary[SetRuntime, dict[Any, GraphReducer]] = weakref.WeakKeyDictionary()
"""By process set, then settings and variables: a loop makes a tape for every step, and the plan stays."""


class _Tape:
    """A tape, with the gradients of all ranks."""

    def __init__(
        self, tape: Any, settings: BufferSettings, local: Iterable[Any], scale_local: bool
    ) -> None:
        self._tape = tape
        self._settings = settings
        self._local = {_key(variable) for variable in local}
        self._scale_local = scale_local

    def __enter__(self) -> _Tape:
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def register_local_source(self, source: Any) -> None:
        """Leave a variable's gradient to this rank."""
        self._local.add(_key(source))

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """The gradients of all ranks. Collective: every rank of the set calls it."""
        own = self._tape.gradient(target, sources, output_gradients, **options)
        flat, listed = tf.nest.flatten(own), tf.nest.flatten(sources)
        chosen = [i for i, (g, v) in enumerate(zip(flat, listed)) if g is not None and _key(v) not in self._local]
        variables = [listed[i] for i in chosen]
        if variables:
            for i, reduced in zip(chosen, self._reducer(variables).reduce([flat[i] for i in chosen])):
                flat[i] = reduced
        if self._local and self._scale_local:
            size = self._settings.process_set.runtime().transport.size
            flat = [_divided(g, size) if _key(v) in self._local else g for g, v in zip(flat, listed)]
        return tf.nest.pack_sequence_as(own, flat)

    def _reducer(self, variables: list[Any]) -> GraphReducer:
        settings = self._settings
        runtime = settings.process_set.runtime()
        made = _reducers.setdefault(runtime, {})
        key = (settings.how, settings.wire, *map(_planned_key, variables))
        if key not in made:
            made[key] = GraphReducer("GradientTape", runtime.next_plan(), variables, settings, kept=True)
            for variable in variables:
                if not isinstance(variable, tf.Tensor):  # whoever drops the model drops its plan
                    weakref.finalize(variable, made.pop, key, None).atexit = False
        return made[key]


def _planned_key(source: Any) -> Any:
    """What tells a source from others in a plan. A tensor that is watched is another one in every step."""
    return (source.dtype.name, tuple(source.shape)) if isinstance(source, tf.Tensor) else _key(source)


def _divided(gradient: Any, size: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient / size


def _key(variable: Any) -> Any:
    """What tells a variable from others; a Keras variable and TensorFlow's in it are the same."""
    inner = getattr(variable, "value", variable)
    held = variable if callable(inner) else inner
    return getattr(held, "_unique_id", None) or id(held)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = True,
    op: Op | int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    team: Team | None = None,
) -> Any:
    """The tape, whose gradient() is reduced over the ranks. Sparse gradients travel as dense ones."""
    return _tape(gradtape, compression, op, process_set, team, (), scale_local_gradients)


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = True,
    op: Op | int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    team: Team | None = None,
) -> Any:
    """DistributedGradientTape, with layers whose gradients stay this rank's (divided by the number of ranks)."""
    layers = [] if local_layers is None else local_layers if isinstance(local_layers, Iterable) else [local_layers]
    local = [variable for layer in layers for variable in layer.trainable_weights]
    return _tape(gradtape, compression, op, process_set, team, local, scale_local_gradients)


def _tape(
    tape: Any,
    compression: type[Compressor],
    op: Op | int,
    process_set: ProcessSet,
    team: Team | None,
    local: Iterable[Any],
    scale_local: bool,
) -> _Tape:
    if isinstance(tape, _Tape):
        raise SettingsError("the tape is distributed already: wrap it once")
    process_set = taking_part(process_set)
    settings = BufferSettings(
        how=reduction("DistributedGradientTape", op, process_set.runtime().transport.size),
        wire=wire_of(compression),
        process_set=process_set,
        team=team or Team(),
    )
    return _Tape(tape, settings, local, scale_local)
