"""Importing Keras in half the time, in processes that train with it and do nothing else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

__all__ = ["keras_alone"]

_LOOKED_FOR = {"jax", "pandas", "sklearn", "tensorflow"}
"""What Keras loads when it is there, to know its types: seconds for each rank."""


@contextlib.contextmanager
def keras_alone(framework: str) -> Iterator[None]:
    """Keras loaded meanwhile finds no package but its backend; what was loaded before stays, and may be loaded after."""
    hidden = _LOOKED_FOR - {framework} - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
