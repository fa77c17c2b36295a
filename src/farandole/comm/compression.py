"""Fewer bytes on the wire: 16-bit floats in transit. (Horovod's `Compression`, plus bf16.)"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from farandole.comm.kernels import bfloat16

__all__ = ["Compression", "Compressor"]


class Compressor(Protocol):
    """Makes an array smaller for the way, and whole again afterwards."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """(what travels, what `decompress` needs to know)"""
        ...

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any: ...


class NoneCompressor:
    """Arrays travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def _shrink(tensor: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Wider floats become 16-bit ones; everything else stays as it is."""
    if tensor.dtype.kind == "f" and tensor.dtype.itemsize > 2:
        return tensor.astype(dtype), tensor.dtype
    return tensor, None


class FP16Compressor:
    """Floats travel as IEEE half precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _shrink(tensor, np.dtype(np.float16))

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class BF16Compressor(FP16Compressor):
    """Floats travel as bfloat16: float32's range, 8 bits of precision."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return _shrink(tensor, bfloat16)


class Compression:
    """The ways to compress."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
