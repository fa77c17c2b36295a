"""Arrays in a file: the safetensors format, with a checksum of every block.

    8 bytes     the header's length, little endian
    header      JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, padded with spaces
    data        the arrays, one after the other, those of the widest type first, so that each is aligned

Checksums are not part of the format; whoever writes keeps them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from farandole.checkpoint.blocks import (
    Damaged,
    FileSums,
    Piece,
    Plain,
    check_length,
    read_checked,
    write_pieces,
)
from farandole.checkpoint.held import Held
from farandole.checkpoint.tree import ArrayInfo
from farandole.comm.bytes.transport import AnyArray
from farandole.errors import CheckpointError

__all__ = ["read_arrays", "read_header", "takes", "write_arrays", "write_bytes"]

_ALIGN = 64

_NAMES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype(np.uint16),
    "I16": np.dtype(np.int16),
    "U32": np.dtype(np.uint32),
    "I32": np.dtype(np.int32),
    "U64": np.dtype(np.uint64),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "C64": np.dtype(np.complex64),
}
_KINDS = {dtype: name for name, dtype in _NAMES.items()}


# Writing


def write_arrays(path: Path, arrays: Mapping[str, AnyArray | Held]) -> FileSums:
    """Write a new file and make it last."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    return write_pieces(path, [Plain(_header(ordered)), *(_piece(array) for _, array in ordered)])


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> FileSums:
    """Write a new file of any content and make it last; a private one only its owner may read."""
    return write_pieces(path, [Plain(data)], 0o600 if private else 0o644)


def takes(dtype: np.dtype[Any]) -> bool:
    """Whether the format has arrays of that type."""
    return dtype in _KINDS


def _header(ordered: Sequence[tuple[str, AnyArray | Held]]) -> bytes:
    entries: dict[str, Any] = {}
    offset = 0
    for name, array in ordered:
        kind = _KINDS.get(array.dtype)
        if kind is None:
            raise CheckpointError(f"{name} is of type {array.dtype}; a checkpoint takes {', '.join(_NAMES)}")
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    return len(text).to_bytes(8, "little") + text


def _piece(array: AnyArray | Held) -> Piece:
    return array if isinstance(array, Held) else Plain(_bytes_of(array))


def _bytes_of(array: AnyArray) -> memoryview:
    plain: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(plain)


# Reading


def read_header(path: Path) -> dict[str, ArrayInfo]:
    """What a file says it holds; nothing of it is checked against checksums."""
    with path.open("rb") as file:
        layout = _layout(file.fileno())
    return {name: ArrayInfo(shape, dtype.name) for name, dtype, shape in layout.arrays}


def read_arrays(path: Path, sums: FileSums) -> dict[str, AnyArray]:
    """The arrays of a file, each block checked; `Damaged` where one is not what was written."""
    with path.open("rb", buffering=0) as file:
        handle = file.fileno()
        check_length(handle, sums)
        layout = _layout(handle)
        header = bytearray(layout.header_bytes)
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in layout.arrays}
        places = [memoryview(header), *(_bytes_of(array) for array in arrays.values())]
        read_checked(handle, places, sums)
    return arrays


@dataclass(frozen=True, slots=True)
class _Layout:
    header_bytes: int
    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...]]]
    """Name, type and shape, in the order of the file."""


def _layout(handle: int) -> _Layout:
    """From the header, which must account for every byte of the file: a wrong one is not to ask for memory."""
    size = os.fstat(handle).st_size
    length = int.from_bytes(os.pread(handle, 8, 0), "little")
    if not 2 <= length <= size - 8:
        raise Damaged("has a header that does not fit into it")
    try:
        entries = json.loads(os.pread(handle, length, 8))
        arrays = [_entry(name, entry) for name, entry in entries.items() if name != "__metadata__"]
        arrays.sort(key=lambda array: array[3:])
        ends = [0, *(end for *_, end in arrays)]
        starts = [start for *_, start, _ in arrays]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged("has a header that cannot be read") from error
    if starts != ends[:-1] or ends[-1] != size - 8 - length:
        raise Damaged("has a header that does not fit its data")
    return _Layout(8 + length, [(name, dtype, shape) for name, dtype, shape, _, _ in arrays])


def _entry(name: str, entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    dtype, shape = _NAMES[entry["dtype"]], tuple(int(n) for n in entry["shape"])
    start, end = entry["data_offsets"]
    if min(shape, default=0) < 0 or end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: {end - start} bytes for {shape} of {dtype}")
    return name, dtype, shape, int(start), int(end)
