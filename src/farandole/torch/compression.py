"""Fewer bytes on the wire, of torch's tensors."""

from __future__ import annotations

from typing import Any

import torch

from farandole.comm.named import compression
from farandole.comm.named.compression import Compressor
from farandole.torch.tensors import numpy_name

__all__ = ["Compression", "Compressor"]


class _OfTensors:
    """Types and casts are torch's."""

    @staticmethod
    def type_of(tensor: torch.Tensor) -> str:
        return numpy_name(tensor.dtype)

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: Any) -> torch.Tensor:
        return tensor.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


class NoneCompressor(_OfTensors, compression.NoneCompressor):
    """Tensors travel as they are."""


class FP16Compressor(_OfTensors, compression.FP16Compressor):
    """Floats travel as IEEE half precision."""


class BF16Compressor(_OfTensors, compression.BF16Compressor):
    """Floats travel as bfloat16: float32's range, 8 bits of precision."""


class Compression:
    """The ways to compress."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
