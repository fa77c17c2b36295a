"""What is changed in Keras, or private there, on every backend."""

from __future__ import annotations

import random
import sys
from typing import Any

import keras

from farandole.keras.parts import distributed_part, trained_by
from farandole.keras.private import is_tried

__all__ = ["ReducedWhenDue", "look_at_beginnings", "reduce_before_overflow", "seed_generator"]


class ReducedWhenDue:
    """In front of a distributed optimizer that accumulates gradients: they are reduced once for several batches."""

    _farandole: Any

    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        self._farandole.applying = trainable_variables
        super()._backend_apply_gradients(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self: Any, grads: Any) -> Any:
        """The first that is done with gradients once they have been accumulated."""
        gradients, steps = self._farandole, self.gradient_accumulation_steps
        if steps and not gradients.reduced:
            grads = gradients.reduce_due(lambda: (self._iterations + 1) % steps == 0, grads)
        return super()._clip_gradients(grads)  # type: ignore[misc]


def seed_generator(make: bool = False) -> Any:
    """The one Keras draws the seeds of layers and initializers from that were given none; None where it has not yet."""
    if not is_tried():
        return None
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    found = global_state.get_global_attribute(getattr(seed_generator, "GLOBAL_SEED_GENERATOR", "global_seed_generator"))
    if found is None and make:
        before = random.getstate()
        found = seed_generator.global_seed_generator()
        random.setstate(before)  # Keras has drawn a seed for it
    return found


# Public methods: the beginning of fit()


def look_at_beginnings() -> None:
    """Let models make their step again where they have stepped with an optimizer before it was distributed."""
    keras.Model.make_train_function = _make_train_function


def _make_train_function(self: Any, force: bool = False) -> Any:
    """Every fit() calls it first."""
    found = distributed_part(getattr(self, "optimizer", None))
    if found is not None:
        found._farandole.handled = id(sys.exception())
        if found._farandole.stepped_before:
            found._farandole.stepped_before = False
            self.train_function = None  # now: as long as JAX has the old step it takes the new one for the same
    return super(keras.Model, self).make_train_function(force)  # the backend's


# Public methods: overflow


def reduce_before_overflow() -> None:
    """Let LossScaleOptimizer look for overflow in the gradients of all ranks.

    It looks before the optimizer in it gets the gradients: a rank that skips a step alone would leave the others waiting.
    """
    scaling = keras.optimizers.LossScaleOptimizer
    if "_farandole_original" in scaling.__dict__:
        return
    scaling._farandole_original = (scaling.apply, scaling.stateless_apply)
    scaling.apply, scaling.stateless_apply = _apply_scaled, _stateless_apply_scaled


def _apply_scaled(self: Any, grads: Any, trainable_variables: Any = None) -> None:
    apply, _ = keras.optimizers.LossScaleOptimizer._farandole_original
    inner = distributed_part(self.inner_optimizer)
    if inner is None or inner._farandole.reduced:
        apply(self, grads, trainable_variables)
        return
    given = None if trainable_variables is None else list(trainable_variables)
    with inner._farandole.as_reduced():
        variables = trained_by(self) if given is None else given
        apply(self, inner._farandole.reduce(grads, variables, tell_overflow=True), given)


def _stateless_apply_scaled(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
    _, stateless_apply = keras.optimizers.LossScaleOptimizer._farandole_original
    inner = distributed_part(self.inner_optimizer)
    if inner is None or inner._farandole.reduced:
        return stateless_apply(self, optimizer_variables, grads, trainable_variables)
    with inner._farandole.as_reduced():
        reduced = inner._farandole.reduce(grads, trained_by(self), tell_overflow=True)
        return stateless_apply(self, optimizer_variables, reduced, trainable_variables)
