"""Streams of tensors: the same memory, seen by torch."""

from __future__ import annotations

from typing import Any

import torch

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.streams import streams
from farandole.errors import SettingsError
from farandole.torch.tensors import as_tensor, numpy_name

__all__ = ["Stream"]


class _Batch(dict[str, torch.Tensor]):
    """A slot's tensors, and how often they have been written to here."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(tensors)
        self.tensors = tensors
        self.versions = self.written()

    def written(self) -> list[int]:
        return [tensor._version for tensor in self.tensors.values()]


class Stream(streams.Stream):
    """`farandole.Stream` with fields and batches of tensors, which all subscribers share: clone what you change."""

    def _field(self, name: str, value: Any) -> tuple[tuple[int, ...], str]:
        shape, dtype = (value.shape, value.dtype) if hasattr(value, "dtype") else value
        if not isinstance(dtype, torch.dtype):
            return super()._field(name, value)
        return tuple(shape), numpy_name(dtype)

    def _to_read(self, arrays: dict[str, AnyArray]) -> Any:
        return _Batch({name: as_tensor(array) for name, array in arrays.items()})

    def _to_fill(self, arrays: dict[str, AnyArray]) -> Any:
        return {name: as_tensor(array) for name, array in arrays.items()}

    def _check_unchanged(self, shown: Any) -> None:
        if isinstance(shown, _Batch) and shown.written() != shown.versions:
            shown.versions = shown.written()
            raise SettingsError(
                f"stream {self.name!r}: a tensor of the last batch was changed in place, which all subscribers read: change a clone()"
            )
