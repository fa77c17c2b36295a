"""torch's arithmetic where it beats NumPy's: 16-bit floats, which it adds an order of magnitude faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.node.arithmetic import Reduction, bfloat16, use_kernels
from farandole.torch.tensors import as_tensor

__all__ = ["SixteenBitKernels", "install"]

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
        multiply, divide = reduction.factors
        if multiply != 1:
            value.mul_(multiply)
        if divide != 1:
            value.div_(divide)
        as_tensor(out).copy_(value)


def install() -> None:
    """Let torch do the arithmetic of the types where it is faster."""
    use_kernels([np.dtype(np.float16), bfloat16], SixteenBitKernels())
