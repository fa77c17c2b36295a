"""A file to be written: its header, and a function that makes any block of its rows on its own.

Every block has a random stream of its own, drawn from the seed, the file and the block's number: whichever
thread makes it, and in whatever order, the bytes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = ["Render", "Sheet", "bits", "header_line", "normal_table", "stream"]

Render = Callable[[slice, np.random.Generator], memoryview]
Words = npt.NDArray[np.uint64]

_BLOCK_VALUES = 400_000  # about 4 MB of text: enough for a write to be cheap, little enough for the caches


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One file: `render` writes the rows of a slice with the random stream it is given."""

    name: str
    header: bytes
    """The first line with its end, or nothing."""
    rows: int
    columns: int
    render: Render
    value_bytes: float
    """About how long a value is with its delimiter: for progress and the check of free space."""

    @property
    def about_bytes(self) -> int:
        return len(self.header) + int(self.rows * self.columns * self.value_bytes)

    def blocks(self) -> Iterator[slice]:
        step = max(1, _BLOCK_VALUES // max(1, self.columns))
        for start in range(0, self.rows, step):
            yield slice(start, min(start + step, self.rows))


def stream(seed: int, *key: int) -> np.random.Generator:
    """The random numbers of one purpose, independent of all others."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def bits(random: np.random.Generator, *shape: int) -> Words:
    """64 random bits a value: kernels take from them what they need."""
    return random.integers(0, 2**64, size=shape, dtype=np.uint64)


@cache
def normal_table() -> npt.NDArray[np.float64]:
    """Standard normal numbers by 16 random bits: a look-up is what makes a draw cheap."""
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((i + 0.5) / 65_536) for i in range(32_768)])
    return np.concatenate([half, -half[::-1]])


def header_line(names: Sequence[str], delimiter: str = ",") -> bytes:
    return (delimiter.join(names) + "\n").encode()
