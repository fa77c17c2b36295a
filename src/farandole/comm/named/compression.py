"""Fewer bytes on the wire: 16-bit floats in transit. (Horovod's `Compression`, plus bf16.)"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from farandole.comm.node.arithmetic import bfloat16
from farandole.errors import SettingsError

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "travels_as", "wire_of"]


class Compressor(Protocol):
    """Makes an array smaller for the way, and whole again afterwards."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """(what travels, what `decompress` needs to know)"""
        ...

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any: ...


class NoneCompressor:
    """Arrays travel as they are."""

    wire: str | None = None
    """What wider floats travel as."""

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        name = cls.type_of(tensor)
        wire = travels_as(cls.wire, name)
        return (tensor, None) if wire == name else (cls.cast(tensor, wire), tensor.dtype)

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else cls.cast(tensor, ctx)

    # Of arrays; doors have others for their tensors.

    @staticmethod
    def type_of(tensor: Any) -> str:
        return str(tensor.dtype.name)

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(bfloat16 if dtype == "bfloat16" else np.dtype(dtype))


class FP16Compressor(NoneCompressor):
    """Floats travel as IEEE half precision."""

    wire = "float16"


class BF16Compressor(NoneCompressor):
    """Floats travel as bfloat16: float32's range, 8 bits of precision."""

    wire = "bfloat16"


class Compression:
    """The ways to compress."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def travels_as(wire: str | None, dtype: str) -> str:
    """The type in which values of `dtype` travel: wider floats become 16-bit ones, everything else stays as it is."""
    return wire if wire and dtype in ("float32", "float64") else dtype


def wire_of(compression: Any, known: Any = Compression) -> str | None:
    """What gradients travel as; `known` are the door's own ways."""
    if compression not in (known.none, known.fp16, known.bf16):
        raise SettingsError(
            f"compression={compression!r}: use Compression.none, Compression.fp16 or Compression.bf16. Gradients are "
            "reduced where they lie, so that a compress() of your own would not be called"
        )
    wire: str | None = compression.wire
    return wire
