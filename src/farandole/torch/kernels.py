"""torch's arithmetic where it beats NumPy's.

16-bit floats are added an order of magnitude faster; float32 is added and scaled in one pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from farandole.comm.kernels import NumpyKernels, Reduction, bfloat16, use_kernels
from farandole.comm.transport import AnyArray
from farandole.torch.tensors import as_tensor

__all__ = ["FusedKernels", "SixteenBitKernels", "install"]

_COMBINE: dict[str, Any] = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}


class SixteenBitKernels:
    """16-bit floats, combined in float32."""

    def accumulator(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return np.dtype(np.float32)

    def first(self, combine: str, a: AnyArray, b: AnyArray, total: AnyArray) -> None:
        out = as_tensor(total)
        out.copy_(as_tensor(a))
        _COMBINE[combine](out, as_tensor(b).float(), out=out)

    def add(self, combine: str, total: AnyArray, x: AnyArray) -> None:
        out = as_tensor(total)
        _COMBINE[combine](out, as_tensor(x).float(), out=out)

    def last(self, reduction: Reduction, a: AnyArray, b: AnyArray, total: AnyArray, out: AnyArray) -> None:
        self.first(reduction.combine, a, b, total)
        self.finish(reduction, total, out)

    def finish(self, reduction: Reduction, total: AnyArray, out: AnyArray) -> None:
        value = as_tensor(total)
        if reduction.multiply != 1.0:
            value.mul_(reduction.multiply)
        if reduction.divide != 1:
            value.div_(reduction.divide)
        as_tensor(out).copy_(value)


_ONE = torch.ones(1)


class FusedKernels(NumpyKernels):
    """float32: the last sum and an exact scaling in one pass over memory."""

    def last(self, reduction: Reduction, a: AnyArray, b: AnyArray, total: AnyArray, out: AnyArray) -> None:
        scale = reduction.multiply / reduction.divide
        # Only with a power of two are scale * a + scale * b and scale * (a + b) the same number.
        if reduction.combine != "sum" or not reduction.scales or abs(math.frexp(scale)[0]) != 0.5:
            super().last(reduction, a, b, total, out)
            return
        row = as_tensor(out).view(1, -1)
        torch.addr(as_tensor(a).view(1, -1), _ONE, as_tensor(b), beta=scale, alpha=scale, out=row)


def install() -> None:
    """Let torch do the arithmetic of the types where it is faster."""
    use_kernels([np.dtype(np.float16), bfloat16], SixteenBitKernels())
    use_kernels([np.dtype(np.float32)], FusedKernels())
