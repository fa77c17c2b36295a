"""Arrays in a file: the safetensors format, with a checksum of every block.

    8 bytes     the header's length, little endian
    header      JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}, padded with spaces
    data        the arrays, one after the other, those of the widest type first, so that each is aligned

Checksums are not part of the format; whoever writes keeps them. They are made while blocks are written and checked
while they are read, on other threads than those that move the data.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from farandole.checkpoint.tree import ArrayInfo
from farandole.comm.transport import AnyArray
from farandole.errors import CheckpointError

__all__ = ["BLOCK_BYTES", "Damaged", "FileSums", "check_file", "read_arrays", "read_header", "write_arrays", "write_bytes"]

BLOCK_BYTES = 4 << 20
_ALIGN = 64
_MOST_PIECES = 512  # of one writev; Linux takes 1024
_SUMMING = 2
_MOST_UNDER_WAY = 16

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


class Damaged(Exception):
    """A file that is not what was written; says how."""


@dataclass(frozen=True, slots=True)
class FileSums:
    """How long a file is, and the CRC-32 of each of its blocks."""

    nbytes: int
    blocks: list[int]


# Writing


def write_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> FileSums:
    """Write a new file and make it last."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    pieces = [memoryview(_header(ordered)), *(_bytes_of(array) for _, array in ordered)]
    return _write(path, pieces)


def write_bytes(path: Path, data: bytes) -> FileSums:
    """Write a new file of any content and make it last."""
    return _write(path, [memoryview(data)])


def _header(ordered: Sequence[tuple[str, AnyArray]]) -> bytes:
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


def _bytes_of(array: AnyArray) -> memoryview:
    plain: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(plain)


def _write(path: Path, pieces: Sequence[memoryview]) -> FileSums:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with ThreadPoolExecutor(1, "farandole-checkpoint-sums") as summing:
            sums: list[Future[int]] = []
            for block in _blocks(pieces):
                sums.append(summing.submit(_sum, block))
                _write_all(handle, block)
        os.fsync(handle)
    finally:
        os.close(handle)
    return FileSums(sum(len(piece) for piece in pieces), [future.result() for future in sums])


def _blocks(pieces: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """The pieces cut where blocks of the file end, and gathered into blocks."""
    block: list[memoryview] = []
    room = BLOCK_BYTES
    for piece in pieces:
        start = 0
        while start < len(piece):
            part = piece[start : start + room]
            block.append(part)
            start += len(part)
            room -= len(part)
            if not room:
                yield block
                block, room = [], BLOCK_BYTES
    if block:
        yield block


def _sum(block: Sequence[memoryview]) -> int:
    value = 0
    for part in block:
        value = zlib.crc32(part, value)
    return value


def _write_all(handle: int, block: Sequence[memoryview]) -> None:
    for first in range(0, len(block), _MOST_PIECES):
        left = list(block[first : first + _MOST_PIECES])
        while left:
            left = _after(left, os.writev(handle, left))


def _after(pieces: list[memoryview], count: int) -> list[memoryview]:
    """What is left when some bytes are done."""
    for index, piece in enumerate(pieces):
        if count < len(piece):
            return [piece[count:], *pieces[index + 1 :]]
        count -= len(piece)
    return []


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
        _check_length(handle, sums)
        layout = _layout(handle)
        header = bytearray(layout.header_bytes)
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape in layout.arrays}
        places = [memoryview(header), *(_bytes_of(array) for array in arrays.values())]
        _read_checked(handle, _blocks(places), sums)
    return arrays


def check_file(path: Path, sums: FileSums) -> None:
    """`Damaged` where a file is not what was written."""
    with path.open("rb", buffering=0) as file:
        _check_length(file.fileno(), sums)
        lengths = [min(BLOCK_BYTES, sums.nbytes - start) for start in range(0, sums.nbytes, BLOCK_BYTES)]
        _read_checked(file.fileno(), ([memoryview(bytearray(length))] for length in lengths), sums)


@dataclass(frozen=True, slots=True)
class _Layout:
    header_bytes: int
    arrays: list[tuple[str, np.dtype[Any], tuple[int, ...]]]
    """Name, type and shape, in the order of the file."""


def _check_length(handle: int, sums: FileSums) -> None:
    found = os.fstat(handle).st_size
    if found != sums.nbytes:
        raise Damaged(f"has {found:,} bytes instead of {sums.nbytes:,}")
    if len(sums.blocks) != -(-sums.nbytes // BLOCK_BYTES):
        raise Damaged(f"has {len(sums.blocks)} checksums for {sums.nbytes:,} bytes")


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


def _read_checked(handle: int, blocks: Iterable[list[memoryview]], sums: FileSums) -> None:
    """One thread reads, in the order of the file, which is what kernels read ahead for; others sum up behind it."""
    with ThreadPoolExecutor(_SUMMING, "farandole-checkpoint-sums") as summing:
        under_way: deque[tuple[int, Future[int]]] = deque()
        for number, block in enumerate(blocks):
            _read_block(handle, number * BLOCK_BYTES, block)
            under_way.append((number, summing.submit(_sum, block)))
            if len(under_way) > _MOST_UNDER_WAY:
                _compare(*under_way.popleft(), sums)
        for one in under_way:
            _compare(*one, sums)


def _read_block(handle: int, offset: int, block: list[memoryview]) -> None:
    for first in range(0, len(block), _MOST_PIECES):
        left = block[first : first + _MOST_PIECES]
        while left:
            count = os.preadv(handle, left, offset)
            if not count:
                raise Damaged("ends too early")
            offset += count
            left = _after(left, count)


def _compare(number: int, found: Future[int], sums: FileSums) -> None:
    if found.result() != sums.blocks[number]:
        start = number * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, sums.nbytes)
        raise Damaged(f"does not fit its checksum between byte {start:,} and {end:,}")
