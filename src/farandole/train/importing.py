"""Importing frameworks fast, in processes that train with one and do nothing else."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

__all__ = ["frameworks_alone", "keras_backend", "with_keras_backend"]

_LOOKED_FOR = {"jax", "pandas", "sklearn", "tensorflow"}
"""What Keras loads when it is there, to know its types: seconds for each rank."""


@contextlib.contextmanager
def frameworks_alone(framework: str) -> Iterator[None]:
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


def keras_backend(framework: str) -> None:
    """What Keras will compute with when it is imported."""
    if "keras" not in sys.modules:
        os.environ["KERAS_BACKEND"] = framework
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@contextlib.contextmanager
def with_keras_backend(framework: str) -> Iterator[None]:
    """Whoever imports Keras meanwhile, as a user's own file may, gets it with this backend; afterwards the environment is as before."""
    names = ("KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL")
    before = {name: os.environ.get(name) for name in names}
    keras_backend(framework)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
