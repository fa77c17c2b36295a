"""Sums of floats in one compiled call, where numba is installed: up to twice as fast as array operations."""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.bytes.waiting import spins
from farandole.comm.node.exchange import WORDS, DirectExchange
from farandole.comm.node.kernels import Reduction, bfloat16

__all__ = ["LEAST_BYTES", "Scratch", "goes_at_once", "goes_compiled", "is_compiled", "load", "prepare", "reduce_posted", "sum_arrays", "sum_slices"]

# Below, a call more or less of the interpreter's is what counts, and no program should wait for the compiler.
LEAST_BYTES = 1 << 20
# What is brought into the cache at once, of each array.
CHUNK_BYTES = 256 * 1024
_HALVES = (np.dtype(np.float16), bfloat16)
_WORDS: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.float32): np.dtype(np.float32),
    np.dtype(np.float64): np.dtype(np.float64),
    **{half: np.dtype(np.uint16) for half in _HALVES},
}
"""What the compiled functions see of each type."""


class Scratch(NamedTuple):
    """Memory of one thread's, for one type of array."""

    total: AnyArray
    reads: AnyArray
    vectors: AnyArray

    @classmethod
    def make(cls, dtype: np.dtype[Any]) -> Scratch:
        word = _WORDS[dtype]
        wide = np.dtype(np.float32) if dtype in _HALVES else word
        count = CHUNK_BYTES // wide.itemsize
        return cls(np.empty(count, wide), np.empty((2, count), word), np.empty(4, np.int64))


def goes_at_once(array: AnyArray, how: Reduction) -> bool:
    """Whether the whole reduction of neighbours' arrays can be one call."""
    return array.dtype not in _HALVES and goes_compiled(array.nbytes, array.dtype, how)


def is_compiled(dtype: np.dtype[Any], how: Reduction) -> bool:
    """Whether there is a compiled function for such reductions, if numba is installed."""
    return how.combine == "sum" and dtype in _WORDS


def goes_compiled(nbytes: int, dtype: np.dtype[Any], how: Reduction) -> bool:
    """Whether this reduction is one of those that are compiled."""
    if nbytes < LEAST_BYTES or not is_compiled(dtype, how) or load()[0] is None:
        return False
    return dtype != np.float16 or _has_half()


@functools.cache
def load() -> tuple[Any, str]:
    """The compiled functions, or why there are none. The first process on a machine compiles them, for some seconds."""
    try:
        from farandole.comm.node import compiled
    except ImportError:
        return None, "sums are not compiled: numba is not installed"
    except RuntimeError as error:  # numba finds no folder to keep what it compiles
        return None, f"sums are not compiled: {error}. Set NUMBA_CACHE_DIR to a folder that can be written"
    return compiled, ""


@functools.cache
def _has_half() -> bool:
    """Whether the processor converts float16 itself; otherwise the compiler would look for a library that does."""
    from llvmlite import binding

    return platform.machine() == "aarch64" or bool(binding.get_host_cpu_features().get("f16c"))


def prepare(dtype: np.dtype[Any]) -> None:
    """Compile what this type needs now, and not in the first step."""
    if not goes_compiled(LEAST_BYTES, dtype, Reduction("sum")):
        return
    nothing, pids, scratch = np.empty(0, dtype), np.zeros(2, np.int64), Scratch.make(dtype)
    sum_slices(pids, pids, nothing, scratch, Reduction("sum"), stream=False)
    if dtype not in _HALVES:
        board = np.zeros((WORDS, 1, 2), np.int64)
        load()[0].reduce_posted(board, 0, 0, 1, pids, 0, nothing, *scratch, 1.0, 1.0, 0, False)


def sum_slices(
    pids: AnyArray, addresses: AnyArray, out: AnyArray, scratch: Scratch, how: Reduction, *, stream: bool
) -> int | None:
    """out = the slices added up in their order, and scaled; `stream` writes past the cache.

    Slice i is at `addresses[i]` of the process `pids[i]`, this one for 0. Returns which could not be read, if any.
    """
    functions, _ = load()
    multiply, divide = map(scratch.total.dtype.type, how.factors)
    memory = (scratch.total, scratch.reads, scratch.vectors, multiply, divide)
    if out.dtype in _HALVES:
        brain = out.dtype == bfloat16
        failed: int = functions.sum_slices_16(pids, addresses, out.view(np.uint16), *memory, brain)
    else:
        failed = functions.sum_slices(pids, addresses, out, *memory, stream)
    return None if failed < 0 else failed


def reduce_posted(
    exchange: DirectExchange,
    slot: int,
    sequence: int,
    out: AnyArray,
    step: int,
    scratch: Scratch,
    how: Reduction,
    *,
    shared: bool,
) -> int | None:
    """Reduce what all neighbours have posted into `out`, which may be what this rank has, as far as they come in time.

    Each rank makes a slice of `step` elements; with `shared`, all make theirs in the same memory. Returns the word of the board that this rank has marked last: `RELEASED` (done), `REDUCED` or none.
    """
    functions, _ = load()
    board = exchange.board
    marked, failed = functions.reduce_posted(
        board.words, slot, board.rank, sequence, exchange.others, step, out, *scratch, *how.factors, spins(), shared
    )
    if failed >= 0:
        raise exchange.why_unreadable(slot, failed)
    return None if marked == functions.NOTHING else int(marked)


def sum_arrays(arrays: Sequence[AnyArray], out: AnyArray, scratch: Scratch, how: Reduction) -> None:
    """out = arrays of this process added up in their order, and scaled; `out` may be one of them."""
    addresses = np.array([array.ctypes.data for array in arrays], np.int64)
    sum_slices(np.zeros(len(arrays), np.int64), addresses, out, scratch, how, stream=False)
