"""Random number generators as parts of a checkpoint."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from farandole.errors import CheckpointError

__all__ = ["NumpyGenerator", "NumpyRandom", "PythonRandom"]


class PythonRandom:
    """The generator of the module `random`."""

    def state_dict(self) -> Any:
        version, words, gauss = random.getstate()
        return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}

    def load_state_dict(self, state: Any) -> None:
        random.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))


class NumpyRandom:
    """The generator behind `numpy.random.rand` and the like."""

    def state_dict(self) -> Any:
        return dict(np.random.get_state(legacy=False))

    def load_state_dict(self, state: Any) -> None:
        np.random.set_state(state)


class NumpyGenerator:
    """One made by `numpy.random.default_rng`."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def state_dict(self) -> Any:
        return dict(self._generator.bit_generator.state)

    def load_state_dict(self, state: Any) -> None:
        here = type(self._generator.bit_generator).__name__
        if state["bit_generator"] != here:
            raise CheckpointError(f"the checkpoint is of a {state['bit_generator']} generator, the script has a {here}")
        self._generator.bit_generator.state = state
