"""LARS for Keras 3, on any backend: the same arithmetic as farandole.optim.lars_torch."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from farandole.errors import SettingsError

__all__ = ["LARS"]


@keras.saving.register_keras_serializable("farandole")
class LARS(keras.optimizers.Optimizer):
    """You, Gitman, Ginsburg 2017. Variables of fewer than two dimensions (biases, norms) are stepped as by SGD.

    Its weight decay is part of the gradient and of the norm ratio, not Keras' decoupled one.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float = 0.9,
        lars_weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-8,
        name: str = "lars",
        **options: Any,
    ) -> None:
        if not 0 <= momentum < 1 or lars_weight_decay < 0 or trust_coefficient <= 0:
            raise SettingsError(
                f"LARS(momentum={momentum}, lars_weight_decay={lars_weight_decay}, trust_coefficient={trust_coefficient}): "
                "momentum must be in [0, 1), lars_weight_decay 0 or more, trust_coefficient above 0"
            )
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.momentum = momentum
        self.lars_weight_decay = lars_weight_decay
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon

    def build(self, variables: Any) -> None:
        if not self.built:
            super().build(variables)
            self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        if len(variable.shape) > 1:
            rate = rate * self._trust(variable, gradient)
            gradient = gradient + self.lars_weight_decay * ops.convert_to_tensor(variable)
        momentum = self._momentums[self._get_variable_index(variable)]
        self.assign(momentum, ops.convert_to_tensor(momentum) * self.momentum + gradient * rate)
        self.assign_sub(variable, momentum)

    def _trust(self, variable: Any, gradient: Any) -> Any:
        """coefficient * |w| / (|g| + decay * |w|), or 1 where either norm is 0."""
        w = ops.sqrt(ops.sum(ops.square(ops.convert_to_tensor(variable))))
        g = ops.sqrt(ops.sum(ops.square(gradient)))
        ratio = self.trust_coefficient * w / (g + self.lars_weight_decay * w + self.epsilon)
        return ops.where(ops.logical_and(w > 0, g > 0), ratio, ops.ones_like(ratio))

    def get_config(self) -> dict[str, Any]:
        own = ("momentum", "lars_weight_decay", "trust_coefficient", "epsilon")
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
