"""What this package changes in Keras, or takes from its private modules. Nothing else here imports `keras.src`.

    on_tensorflow.py    epochs of arrays, which end with their last batch
    on_jax.py           steps in two parts, for very large gradients
    on_all.py           gradients of several batches reduced once, the state of Keras' own random seeds; and, of public methods,
                        what all ranks need to take the same decisions

On torch nothing else is changed. With a version of Keras that has not been tried, none of it is used but the public methods:
steps, epochs and batches are Keras' own, gradients are reduced with every batch, and checkpoints have no seeds of Keras' own.
"""

from __future__ import annotations

import functools
import warnings

import keras

from farandole.keras.backend import release

__all__ = ["TRIED", "is_tried"]

TRIED = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 15))
"""Releases of Keras with which the tests of this door (tests/ranks/test_keras*.py, tests/parity/test_keras_training.py) have passed."""


@functools.cache
def is_tried() -> bool:
    """Whether this Keras may be changed; says so once where it may not."""
    if release(keras.__version__) in TRIED:
        return True
    known = ", ".join(f"{major}.{minor}" for major, minor in TRIED)
    warnings.warn(
        f"farandole has not been tried with Keras {keras.__version__}, only with {known}: it trains in Keras' own steps, which can be "
        "slower, and checkpoints do not keep Keras' own random seeds",
        stacklevel=3,
    )
    return False
