"""Files to arrays: numeric tables read at the speed of memory, and the CANDLE data sets.

    from farandole.data import read_matrix
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.data.matrix import Matrix, read_matrix

__all__ = ["Matrix", "read_matrix"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: the command line needs neither."""
    if name not in __all__:
        raise AttributeError(f"module 'farandole.data' has no attribute {name!r}")
    from farandole.data import matrix

    return getattr(matrix, name)
