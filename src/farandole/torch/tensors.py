"""Tensors seen as NumPy arrays, and back, without copying where memory allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.node.arithmetic import bfloat16
from farandole.errors import SettingsError

__all__ = ["as_array", "as_tensor", "numpy_name", "staged"]

_NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


def numpy_name(dtype: torch.dtype) -> str:
    """NumPy's name of a tensor type; an error that lists those that can travel."""
    if dtype not in _NAMES:
        known = ", ".join(_NAMES.values())
        raise SettingsError(f"{dtype} tensors cannot be exchanged; convert to one of {known}")
    return _NAMES[dtype]


def staged(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory is not the host's, so that it travels through a copy."""
    return not tensor.is_cpu


def as_array(tensor: torch.Tensor) -> AnyArray:
    """The tensor's values: its own memory on the host, a copy from elsewhere."""
    numpy_name(tensor.dtype)
    plain = tensor.detach()
    if staged(plain):
        plain = plain.cpu()
    if plain.dtype == torch.bfloat16:
        words: Any = plain.view(torch.int16).numpy()
        return words.view(bfloat16)  # type: ignore[no-any-return]
    return plain.numpy()


def as_tensor(array: AnyArray) -> torch.Tensor:
    """A tensor over the array's memory."""
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
