"""Some of many, where there is no room for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["spread_out"]

T = TypeVar("T")


def spread_out(items: Sequence[T], most: int) -> list[T]:
    """All, or `most` of them at equal distances, the first and the last included."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(at * step)] for at in range(most)]
