"""Arithmetic on arrays that came from other ranks.

    Reduction           what to do with them: combine, multiply, divide
    kernels_for         array operations that do it, chunk by chunk: `combine`
    sum_slices          sums of large float arrays in one compiled call, up to twice as fast, where numba is installed
    combine_arrays      whichever of the two it is, for arrays of this process

NumPy's kernels know every type; a framework's door may hand in faster ones for the types where its own
are better (torch adds 16-bit floats an order of magnitude faster than NumPy). 16-bit floats are summed in
float32 and rounded once, so the sum of many ranks neither overflows nor loses the small ones. Sums of integers
wrap as in C; those that are divided or scaled are made in int64 first, where they do not.
"""

from __future__ import annotations

import functools
import math
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import ml_dtypes
import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.node.exchange import WORDS

__all__ = [
    "LEAST_BYTES", "Kernels", "NumpyKernels", "Op", "Reduction", "bfloat16", "combine", "combine_arrays", "goes_at_once",
    "goes_compiled", "is_compiled", "kernels_for", "load", "prepare", "scratch_for", "sum_slices", "use_kernels",
]  # fmt: skip

# Below, a call more or less of the interpreter's is what counts, and no program should wait for the compiler.
LEAST_BYTES = 1 << 20
# What is brought into the cache at once, of each array: by array operations, and by a compiled call.
CHUNK_BYTES = 512 * 1024
COMPILED_CHUNK_BYTES = 256 * 1024

bfloat16 = np.dtype(ml_dtypes.bfloat16)
_SIXTEEN_BIT = {np.dtype(np.float16), bfloat16}
_COMPILED = {np.dtype(np.float32), np.dtype(np.float64), *_SIXTEEN_BIT}
_UFUNCS: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


class Op(IntEnum):
    """Reduction operations, with Horovod's codes."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


@dataclass(frozen=True, slots=True)
class Reduction:
    """What to do with the values of all ranks: combine, then multiply, then divide."""

    combine: str
    """`sum`, `min`, `max` or `product`."""
    multiply: float = 1.0
    divide: int = 1

    @property
    def scales(self) -> bool:
        return self.factors != (1.0, 1.0)

    @property
    def factors(self) -> tuple[float, float]:
        """(multiply, divide), as one multiplication where that is exact and so gives the same number."""
        scale = self.multiply / self.divide
        return (scale, 1.0) if abs(math.frexp(scale)[0]) == 0.5 else (self.multiply, float(self.divide))

    def widened(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type to reduce in: sums of narrow integers would wrap before they are divided."""
        narrow = self.scales and dtype.kind in "iu" and dtype.itemsize < 8
        return np.dtype(np.int64) if narrow else dtype

    def unscaled(self) -> Reduction:
        return Reduction(self.combine)


class Kernels(Protocol):
    """Element-wise work on flat arrays."""

    def accumulator(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type sums of `dtype` are kept in."""
        ...

    def first(self, combine: str, a: AnyArray, b: AnyArray, total: AnyArray) -> None:
        """total = a (combine) b."""
        ...

    def add(self, combine: str, total: AnyArray, x: AnyArray) -> None:
        """total = total (combine) x."""
        ...

    def last(self, reduction: Reduction, a: AnyArray, b: AnyArray, total: AnyArray, out: AnyArray) -> None:
        """out = (a (combine) b) * multiply / divide, in out's type; `total` is scratch and may be `a`."""
        ...

    def finish(self, reduction: Reduction, total: AnyArray, out: AnyArray) -> None:
        """out = total * multiply / divide, in out's type."""
        ...


def _quiet() -> np.errstate:
    """An overflow is a result, which others look at (a loss scaler does): nothing to warn of here."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore")


class NumpyKernels:
    """Kernels for every type."""

    def accumulator(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32) if dtype in _SIXTEEN_BIT else dtype

    @_quiet()
    def first(self, combine: str, a: AnyArray, b: AnyArray, total: AnyArray) -> None:
        _UFUNCS[combine](a.astype(total.dtype, copy=False), b.astype(total.dtype, copy=False), out=total)

    @_quiet()
    def add(self, combine: str, total: AnyArray, x: AnyArray) -> None:
        _UFUNCS[combine](total, x.astype(total.dtype, copy=False), out=total)

    @_quiet()
    def last(self, reduction: Reduction, a: AnyArray, b: AnyArray, total: AnyArray, out: AnyArray) -> None:
        if not reduction.scales and out.dtype == total.dtype:
            self.first(reduction.combine, a, b, out)
        else:
            self.first(reduction.combine, a, b, total)
            self.finish(reduction, total, out)

    @_quiet()
    def finish(self, reduction: Reduction, total: AnyArray, out: AnyArray) -> None:
        if not reduction.scales:
            np.copyto(out, total, casting="unsafe")
        elif total.dtype.kind in "iub":
            np.copyto(out, _scale_integers(reduction, total), casting="unsafe")
        else:
            target = out if out.dtype == total.dtype else total
            multiply, divide = map(total.dtype.type, reduction.factors)
            if multiply != 1:
                np.multiply(total, multiply, out=target)
                total = target
            if divide != 1:
                np.divide(total, divide, out=target)
            if target is not out:
                np.copyto(out, target, casting="unsafe")


def _scale_integers(reduction: Reduction, total: AnyArray) -> AnyArray:
    """Integers are scaled in float64 and cut towards zero; a plain average stays exact."""
    if reduction.multiply == 1.0 and total.dtype.kind in "iu":
        wide = total if total.dtype.itemsize == 8 else total.astype(np.int64)
        below = wide // reduction.divide
        below += (wide < 0) & (below * reduction.divide != wide)
        return below
    return np.trunc(total.astype(np.float64) * reduction.multiply / reduction.divide)


_numpy = NumpyKernels()
_special: dict[np.dtype[Any], Kernels] = {}


def use_kernels(dtypes: list[np.dtype[Any]], kernels: Kernels) -> None:
    """Let a door's kernels do the arithmetic of these types."""
    for dtype in dtypes:
        _special[np.dtype(dtype)] = kernels


def kernels_for(dtype: np.dtype[Any]) -> Kernels:
    return _special.get(dtype, _numpy)


class Scratch(NamedTuple):
    """Memory of one thread's, for one type of array."""

    total: AnyArray
    """A chunk of a result."""
    reads: AnyArray
    """Two chunks of what is read."""
    vectors: AnyArray
    """Four words for a compiled call."""


_of_thread = threading.local()


def scratch_for(dtype: np.dtype[Any], *, compiled: bool = False) -> Scratch:
    """What this thread keeps, for array operations or a compiled call, which sees 16-bit floats as words."""
    kept: dict[Any, Scratch] = _of_thread.__dict__
    key = (dtype, compiled)
    if key not in kept:
        wide = kernels_for(dtype).accumulator(dtype)
        count = COMPILED_CHUNK_BYTES // wide.itemsize if compiled else CHUNK_BYTES // dtype.itemsize
        word = np.dtype(np.uint16) if compiled and dtype in _SIXTEEN_BIT else dtype
        kept[key] = Scratch(np.empty(count, wide), np.empty((2, count), word), np.empty(4, np.int64))
    return kept[key]


def combine(
    how: Reduction, count: int, parts: Callable[[int, int, AnyArray], Iterator[AnyArray]], out: AnyArray
) -> None:
    """out = `count` arrays combined, first to last, and scaled, chunk by chunk in the cache.

    `parts(start, stop, reads)` has these elements of each array, in turn: in `reads[0]` and `reads[1]`, or where they are.
    """
    kernels, scratch = kernels_for(out.dtype), scratch_for(out.dtype)
    step = scratch.total.size
    for start in range(0, out.size, step):
        stop = min(start + step, out.size)
        arrays = parts(start, stop, scratch.reads)
        _combine_chunk(kernels, how, count, arrays, scratch.total[: stop - start], out[start:stop])


def _combine_chunk(
    kernels: Kernels, how: Reduction, count: int, arrays: Iterator[AnyArray], total: AnyArray, out: AnyArray
) -> None:
    so_far = next(arrays)
    for number, array in enumerate(arrays, start=2):
        if number == count:
            kernels.last(how, so_far, array, total, out)
        elif number == 2:
            kernels.first(how.combine, so_far, array, total)
        else:
            kernels.add(how.combine, total, array)
        so_far = total


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


def is_compiled(dtype: np.dtype[Any], how: Reduction) -> bool:
    """Whether there is a compiled function for such reductions, if numba is installed."""
    return how.combine == "sum" and dtype in _COMPILED


def goes_compiled(nbytes: int, dtype: np.dtype[Any], how: Reduction) -> bool:
    """Whether this reduction is one of those that are compiled."""
    if nbytes < LEAST_BYTES or not is_compiled(dtype, how) or load()[0] is None:
        return False
    return dtype != np.float16 or _has_half()


def goes_at_once(array: AnyArray, how: Reduction) -> bool:
    """Whether the whole reduction of neighbours' arrays can be one call."""
    return array.dtype not in _SIXTEEN_BIT and goes_compiled(array.nbytes, array.dtype, how)


def prepare(dtype: np.dtype[Any]) -> None:
    """Compile what this type needs now, and not in the first step."""
    if not goes_compiled(LEAST_BYTES, dtype, Reduction("sum")):
        return
    nothing, pids = np.empty(0, dtype), np.zeros(2, np.int64)
    sum_slices(pids, pids, nothing, Reduction("sum"), stream=False)
    if dtype not in _SIXTEEN_BIT:
        board, scratch = np.zeros((WORDS, 1, 2), np.int64), scratch_for(dtype, compiled=True)
        load()[0].reduce_posted(board, 0, 0, 1, pids, 0, nothing, *scratch, 1.0, 1.0, 0, False)


def sum_slices(pids: AnyArray, addresses: AnyArray, out: AnyArray, how: Reduction, *, stream: bool) -> int | None:
    """out = the slices added up in their order, and scaled, in a compiled call; `stream` writes past the cache.

    Slice i is at `addresses[i]` of the process `pids[i]`, this one for 0. Returns which could not be read, if any.
    """
    functions, scratch = load()[0], scratch_for(out.dtype, compiled=True)
    multiply, divide = map(scratch.total.dtype.type, how.factors)
    if out.dtype in _SIXTEEN_BIT:
        brain = out.dtype == bfloat16
        failed: int = functions.sum_slices_16(pids, addresses, out.view(np.uint16), *scratch, multiply, divide, brain)
    else:
        failed = functions.sum_slices(pids, addresses, out, *scratch, multiply, divide, stream)
    return None if failed < 0 else failed


def combine_arrays(how: Reduction, arrays: Sequence[AnyArray], out: AnyArray) -> None:
    """out = arrays of this process combined in their order, and scaled; `out` may be one of them."""

    def parts(start: int, stop: int, _: AnyArray) -> Iterator[AnyArray]:
        for array in arrays:
            yield array[start:stop]

    if goes_compiled(out.nbytes, out.dtype, how):
        addresses = np.array([array.ctypes.data for array in arrays], np.int64)
        sum_slices(np.zeros(len(arrays), np.int64), addresses, out, how, stream=False)
    else:
        combine(how, len(arrays), parts, out)
