"""Arithmetic on arrays of bytes that came from other ranks.

NumPy does it for every type; a framework's door may hand in faster kernels for the types where its own
are better (torch adds 16-bit floats an order of magnitude faster than NumPy). 16-bit floats are summed in
float32 and rounded once, so the sum of many ranks neither overflows nor loses the small ones. Sums of integers
wrap as in C; those that are divided or scaled are made in int64 first, where they do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from farandole.comm.bytes.transport import AnyArray

__all__ = ["Kernels", "NumpyKernels", "Op", "Reduction", "bfloat16", "kernels_for", "use_kernels"]

bfloat16 = np.dtype(ml_dtypes.bfloat16)
_SIXTEEN_BIT = {np.dtype(np.float16), bfloat16}
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
