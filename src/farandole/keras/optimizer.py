"""DistributedOptimizer: any Keras 3 optimizer, with gradients averaged over the ranks.

The given optimizer itself gets a class in front of its own that reduces gradients before they are applied. Keras
still sees the class it was: it is saved, loaded and shown as if it were alone, so that a saved model needs nothing
of this package.

Where gradients are reduced, so that every rank takes the same decisions:

    as they come          the usual case
    before the overflow   with LossScaleOptimizer around it or inside: one rank's overflow is seen by all
    when they are due     with gradient accumulation: once for several batches
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import keras

from farandole.comm.gradients.buffers import BufferSettings
from farandole.comm.gradients.opening import reduction, taking_part
from farandole.comm.gradients.team import Team
from farandole.comm.named.compression import Compression, Compressor, wire_of
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.keras.backend import reducing
from farandole.keras.parts import distributed_part, innermost, trained_by
from farandole.keras.private import is_tried
from farandole.keras.private.on_all import ReducedWhenDue, look_at_beginnings, reduce_before_overflow

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "local_variables"]


class _Gradients:
    """An optimizer's gradients: which are reduced, and by what."""

    def __init__(self, label: str, settings: BufferSettings, local_layers: Sequence[Any], scale_local: bool) -> None:
        self.settings = settings
        self.reduced = False
        """Whether those being applied, or traced, are reduced already."""
        self.applying: Sequence[Any] = ()
        """The variables of the gradients being applied."""
        self.alone = False
        """Whether gradients stay this rank's for now, because the ranks' weights still differ."""
        self.local_layers = local_layers
        self.held: list[Sequence[Any]] | None = None
        """Where gradients go instead of being applied, while a step is taken apart."""
        self.stepped_before = False
        """Whether a model's step may have been made before its gradients were to be reduced."""
        self.results_used = False
        """Whether the step that is traced is known to use what was reduced, once, whatever else it does."""
        self.handled = id(None)
        """The exception around fit(), which may be called to handle one."""
        self._label = label
        # Now, not with the first step: optimizers are wrapped in one order on all ranks, their threads may begin in any.
        self._name = settings.process_set.runtime().next_plan()
        self._scale_local = scale_local
        self._module = reducing()
        self._reducers: dict[tuple[int, ...], Any] = {}

    def reduce(
        self, grads: Sequence[Any], variables: Sequence[Any], *, between: bool = False, tell_overflow: bool = False
    ) -> list[Any]:
        """The gradients of all ranks; those of local layers stay this rank's.

        `between`: between two parts of a step, of which the second is done with them before the next step's are reduced.
        `tell_overflow`: somebody looks for overflow next, and ranks must find the same.
        """
        local = {id(v) for v in local_variables_of(self.local_layers)}
        if local and tell_overflow:
            grads = _with_overflow_shared(grads, variables, local)
        result = list(grads)
        chosen = [
            i
            for i, v in enumerate(variables)
            if id(v) not in local and (grads[i] is not None or self._module.KEEPS_ABSENT)
        ]
        reducer = self._reducer([variables[i] for i in chosen])
        reduce = reducer.reduce_between if between else reducer.reduce
        for i, gradient in zip(chosen, reduce([grads[i] for i in chosen])):
            result[i] = gradient
        if local:
            size = self.settings.process_set.runtime().transport.size if self._scale_local else 1
            divisor = size / self.settings.how.multiply  # which reduced gradients have been multiplied by
            divide = keras.ops.divide  # TensorFlow's sparse gradients, too
            result = [divide(g, divisor) if id(v) in local and g is not None else g for g, v in zip(result, variables)]
        return result

    def reduce_due(self, is_due: Any, grads: Sequence[Any]) -> list[Any]:
        """The same for accumulated gradients, in steps in which they are applied."""
        found: list[Any] = self._module.when_due(is_due, lambda g: self.reduce(g, self.applying), list(grads))
        return found

    def _reducer(self, variables: list[Any]) -> Any:
        """The one for these variables, made when they first come: while a graph is traced, not while it runs."""
        key = tuple(map(id, variables))
        if key not in self._reducers:
            name = f"{self._name}.{len(self._reducers)}" if self._reducers else self._name
            self._reducers[key] = self._module.make_reducer(self._label, name, variables, self.settings)
            self._reducers[key].alone = self.alone
        self._reducers[key].results_used = self.results_used
        return self._reducers[key]

    def stay_alone(self, alone: bool) -> None:
        """Leave gradients to each rank, or begin to reduce them."""
        self.alone = alone
        for reducer in self._reducers.values():
            reducer.alone = alone

    @contextlib.contextmanager
    def as_reduced(self) -> Iterator[None]:
        """Inside, gradients are applied as they are."""
        before, self.reduced = self.reduced, True
        try:
            yield
        finally:
            self.reduced = before

    @contextlib.contextmanager
    def holding(self) -> Iterator[list[Sequence[Any]]]:
        """Inside, gradients are handed out and nothing is applied."""
        found: list[Sequence[Any]] = []
        self.held = found
        try:
            yield found
        finally:
            self.held = None

    def end(self) -> None:
        """This rank has ended its training, or an epoch of a length nobody knew: raise where others have not.

        With several reducers (parts of a model trained in turn) nobody knows for which the others wait.
        """
        if len(self._reducers) == 1:
            next(iter(self._reducers.values())).end()

    def statistics(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for reducer in self._reducers.values():
            for name, value in reducer.statistics().items():
                total[name] = total.get(name, 0) + value
        return total


class _Distributed:
    """What DistributedOptimizer puts in front of an optimizer's class."""

    _farandole: _Gradients
    _farandole_plain: type

    def _farandole_is_later(self: Any) -> bool:
        """Whether gradients are accumulated first."""
        return bool(self.gradient_accumulation_steps) and isinstance(self, ReducedWhenDue)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        gradients = self._farandole
        if gradients.reduced or self._farandole_is_later():
            super().apply(grads, trainable_variables)  # type: ignore[misc]
            return
        given = None if trainable_variables is None else list(trainable_variables)
        variables = trained_by(self) if given is None else given
        with gradients.as_reduced():
            reduced = gradients.reduce(grads, variables, tell_overflow=_scales_loss(self))
            super().apply(reduced, given)  # type: ignore[misc]

    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        gradients = self._farandole
        if gradients.held is not None:
            gradients.held.append(grads)
            return trainable_variables, optimizer_variables
        if gradients.reduced or self._farandole_is_later():
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]
        with gradients.as_reduced():
            reduced = gradients.reduce(grads, trained_by(self), tell_overflow=_scales_loss(self))
            return super().stateless_apply(optimizer_variables, reduced, trainable_variables)  # type: ignore[misc]

    def finalize_variable_values(self: Any, var_list: Any) -> None:
        """Keras calls it at the end of fit()."""
        gradients = self._farandole
        if id(sys.exception()) == gradients.handled:  # on JAX also when fit() fails: others then learn of it in their own way
            gradients.end()
        super().finalize_variable_values(var_list)  # type: ignore[misc]

    def communication_statistics(self) -> dict[str, float]:
        """Steps, bytes, seconds and exposed seconds of communication, and bytes copied for it."""
        return self._farandole.statistics()

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        """A configuration describes the optimizer without its distribution."""
        plain: Any = cls._farandole_plain
        return plain.from_config(config, custom_objects)


AnyOptimizer = TypeVar("AnyOptimizer")


def DistributedOptimizer(
    optimizer: AnyOptimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = True,
    gradient_predivide_factor: float = 1.0,
    op: Op | int = Op.AVERAGE,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    team: Team | None = None,
) -> AnyOptimizer:
    """The optimizer, stepping with gradients reduced over the ranks.

    `backward_passes_per_step` adds the gradients of several batches up before they are reduced. `name`, the
    devices, groups and `sparse_as_dense` are accepted for Horovod's sake: the plan knows better groups, and
    sparse gradients travel as dense ones.
    """
    _distribute(
        optimizer, compression, op, gradient_predivide_factor, process_set, backward_passes_per_step,
        average_aggregated_gradients, team, (), False,
    )  # fmt: skip
    return optimizer


def PartialDistributedOptimizer(
    optimizer: AnyOptimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = True,
    gradient_predivide_factor: float = 1.0,
    op: Op | int = Op.AVERAGE,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    team: Team | None = None,
) -> AnyOptimizer:
    """DistributedOptimizer, with layers whose gradients stay this rank's (divided by the number of ranks)."""
    _distribute(
        optimizer, compression, op, gradient_predivide_factor, process_set, backward_passes_per_step,
        average_aggregated_gradients, team, _layers(local_layers), scale_local_gradients,
    )  # fmt: skip
    return optimizer


def _distribute(
    optimizer: Any,
    compression: type[Compressor],
    op: Op | int,
    predivide: float,
    process_set: ProcessSet,
    passes: int,
    average_passes: bool,
    team: Team | None,
    local_layers: Sequence[Any],
    scale_local: bool,
) -> None:
    _check(optimizer)
    wire = wire_of(compression)
    _check_clipping(optimizer, local_layers)
    process_set = taking_part(process_set)
    size = process_set.runtime().transport.size
    _accumulate(optimizer, passes)
    # Keras averages the passes that it accumulates, Horovod adds them up.
    multiply = 1.0 if average_passes else float(passes)
    settings = BufferSettings(
        how=reduction("DistributedOptimizer", op, size, predivide=predivide, multiply=multiply),
        wire=wire,
        process_set=process_set,
        team=team or Team(),
    )
    plain = type(optimizer)
    optimizer.__dict__["_farandole"] = _Gradients(plain.__name__, settings, local_layers, scale_local)
    optimizer._farandole.stepped_before = optimizer.built
    look_at_beginnings()
    reduce_before_overflow()
    if is_tried():
        reducing().prepare()
    optimizer.__class__ = _in_front_of(plain)


def _in_front_of(plain: type) -> type:
    """The class, reducing gradients first, which says that it is the class itself: Keras saves it as such."""
    shown = property(lambda self: plain)
    front = (_Distributed, ReducedWhenDue) if is_tried() else (_Distributed,)
    return type(plain.__name__, (*front, plain), {"__class__": shown, "_farandole_plain": plain})


def _check(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SettingsError(
            f"DistributedOptimizer({type(optimizer).__name__}): pass a Keras 3 optimizer, "
            "e.g. keras.optimizers.SGD(0.01)"
        )
    if distributed_part(optimizer) is not None:
        raise SettingsError("the optimizer is distributed already: wrap it once")


def _check_clipping(optimizer: Any, local_layers: Sequence[Any]) -> None:
    norm = innermost(optimizer).global_clipnorm
    if norm is not None and local_layers:
        raise SettingsError(
            f"global_clipnorm={norm} with local_layers: the norm of all gradients has those of this rank's own layers in "
            f"it, so that every rank would clip the shared layers differently. Use clipnorm={norm}, which looks at each "
            "variable alone."
        )


def _accumulate(optimizer: Any, passes: int) -> None:
    if passes < 1:
        raise SettingsError(f"backward_passes_per_step={passes}: must be 1 or more")
    if passes == 1:
        return
    adding = innermost(optimizer)  # LossScaleOptimizer adds nothing up itself
    if adding.gradient_accumulation_steps == passes:  # of the user's own, or loaded, with room to add gradients up
        return
    if adding.gradient_accumulation_steps is not None:
        raise SettingsError(
            f"backward_passes_per_step={passes}, but the optimizer has gradient_accumulation_steps="
            f"{adding.gradient_accumulation_steps}: give one of them"
        )
    if adding.built:
        raise SettingsError(
            f"backward_passes_per_step={passes}: the optimizer is built already, without room to add gradients up. "
            "Call DistributedOptimizer before the first fit() or build()."
        )
    adding.gradient_accumulation_steps = passes


# Layers that stay with their rank


def _layers(given: Any) -> list[Any]:
    layers = [] if given is None else list(given) if isinstance(given, Iterable) else [given]
    wrong = [layer for layer in layers if not isinstance(layer, keras.Layer)]
    if wrong:
        raise SettingsError(f"local_layers={wrong}: pass Keras layers")
    return layers


def local_variables_of(layers: Iterable[Any]) -> list[Any]:
    return [variable for layer in layers for variable in layer.variables]


def local_variables(optimizer: Any) -> list[Any]:
    """Variables of layers that a PartialDistributedOptimizer leaves to each rank."""
    found = distributed_part(optimizer)
    return [] if found is None else local_variables_of(found._farandole.local_layers)


# Overflow


def _scales_loss(optimizer: Any) -> bool:
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def _with_overflow_shared(grads: Sequence[Any], variables: Sequence[Any], local: set[int]) -> list[Any]:
    """The gradients, of which a shared one is NaN where one of a local layer is not finite: all ranks then see that."""
    result = list(grads)
    own = [g for g, v in zip(grads, variables) if g is not None and id(v) in local]
    shared = [i for i, v in enumerate(variables) if grads[i] is not None and id(v) not in local]
    if own and shared:
        smallest = min(shared, key=lambda i: math.prod(variables[i].shape))
        is_finite = keras.ops.all(keras.ops.stack([keras.ops.all(keras.ops.isfinite(g)) for g in own]))
        gradient = keras.ops.convert_to_tensor(grads[smallest])
        result[smallest] = keras.ops.where(is_finite, gradient, keras.ops.full_like(gradient, math.nan))
    return result
