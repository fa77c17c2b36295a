"""Optimizers in one another: LossScaleOptimizer has another inside, either of which may be distributed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["distributed_part", "innermost", "trained_by"]


def _nested(optimizer: Any) -> Iterator[Any]:
    """The optimizer, the one in it, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def innermost(optimizer: Any) -> Any:
    """The one that steps."""
    *_, last = _nested(optimizer)
    return last


def distributed_part(optimizer: Any) -> Any:
    """The distributed optimizer: this one, or one in it; None where there is none."""
    return next((one for one in _nested(optimizer) if "_farandole" in vars(one)), None)


def trained_by(optimizer: Any) -> list[Any]:
    """The variables an optimizer was built for; before Keras 3.12 LossScaleOptimizer does not list them itself."""
    variables: list[Any] = innermost(optimizer)._trainable_variables
    return variables
