"""Which Keras, and what it computes with."""

from __future__ import annotations

import importlib
from types import ModuleType

from farandole.errors import SettingsError

__all__ = ["BACKENDS", "backend_name", "reducing", "release"]

BACKENDS = ("torch", "tensorflow", "jax")
_OLDEST_TENSORFLOW = (2, 16)


def release(version: str) -> tuple[int, int]:
    """(major, minor) of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def backend_name() -> str:
    """The backend of the Keras that is installed; an error where this package cannot work with either."""
    import keras

    if release(keras.__version__)[0] < 3:
        raise SettingsError(
            f"Keras {keras.__version__} is installed, farandole.keras needs Keras 3. Type: pip install 'keras>=3.5'"
        )
    name: str = keras.backend.backend()
    if name not in BACKENDS:
        raise SettingsError(
            f"Keras computes with {name!r}, farandole.keras with one of {', '.join(BACKENDS)}. "
            "Set KERAS_BACKEND before Python starts, e.g. KERAS_BACKEND=torch."
        )
    if name == "tensorflow":
        _check_tensorflow()
    return name


def _check_tensorflow() -> None:
    import tensorflow

    if release(tensorflow.__version__) < _OLDEST_TENSORFLOW:
        raise SettingsError(
            f"TensorFlow {tensorflow.__version__} is installed, Keras 3 needs 2.16 or newer. "
            "Type: pip install 'tensorflow-cpu>=2.18'"
        )


def reducing() -> ModuleType:
    """The module that gets gradients out of the backend and back in."""
    return importlib.import_module(f"farandole.keras.on_{backend_name()}")


def limit_threads() -> None:
    """Under `farandole launch` the backend gets its share of the cores."""
    reducing().set_threads()
