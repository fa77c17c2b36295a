"""Fewer bytes on the wire: 16-bit floats in transit. (Horovod's `Compression`, plus bf16.)"""

from __future__ import annotations

import torch

__all__ = ["KNOWN", "Compression", "Compressor"]


class Compressor:
    """Tensors travel as they are."""

    wire: torch.dtype | None = None
    """What wider floats travel as."""

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype | None]:
        """(what travels, the type to go back to)"""
        if cls.travels_as(tensor.dtype) == tensor.dtype:
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: torch.dtype | None) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)

    @classmethod
    def travels_as(cls, dtype: torch.dtype) -> torch.dtype:
        wide = dtype in (torch.float32, torch.float64)
        return cls.wire if cls.wire is not None and wide else dtype


class FP16Compressor(Compressor):
    """Floats travel as IEEE half precision."""

    wire = torch.float16


class BF16Compressor(Compressor):
    """Floats travel as bfloat16: float32's range, 8 bits of precision."""

    wire = torch.bfloat16


class Compression:
    """The ways to compress."""

    none = Compressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


KNOWN = (Compression.none, Compression.fp16, Compression.bf16)
