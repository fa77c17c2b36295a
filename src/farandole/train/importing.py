"""Importing Keras in half the time, in processes that train with it and do nothing else."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

__all__ = ["keras_alone"]

_LOOKED_FOR = {"jax", "pandas", "sklearn", "tensorflow"}
"""What Keras loads when it is there, to know its types: seconds for each rank."""


@contextlib.contextmanager
def keras_alone(framework: str) -> Iterator[None]:
    """Keras loaded meanwhile finds no package but its backend; what was loaded before stays, and may be loaded after.

    Frameworks are hundreds of thousands of objects that stay: garbage is not looked for among them, now or later.
    """
    hidden = _LOOKED_FOR - {framework} - set(sys.modules)
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for name in hidden:
            del sys.modules[name]
