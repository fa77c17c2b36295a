"""The files arrays are written to."""

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from farandole.checkpoint import blocks
from farandole.checkpoint.blocks import Damaged, FileSums, check_file
from farandole.checkpoint.tensorfile import read_arrays, read_header, write_arrays
from farandole.errors import CheckpointError

TYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    "complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


def some(dtype, shape=(3, 5)) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 2, shape).astype(dtype)


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    by_type = {f"type {np.dtype(dtype).name}": some(dtype) for dtype in TYPES}
    odd = {"scalar": np.array(2.5), "empty": np.zeros((0, 3), np.float32), "é/ü": some("float32")[:, ::2]}
    return by_type | odd


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return set(one) == set(other) and all(
        one[n].shape == other[n].shape and one[n].dtype == other[n].dtype and one[n].tobytes() == other[n].tobytes()
        for n in one
    )


def test_arrays_of_every_type_come_back(tmp_path: Path, arrays) -> None:
    sums = write_arrays(tmp_path / "f", arrays)
    assert same(read_arrays(tmp_path / "f", sums), arrays)
    assert read_header(tmp_path / "f")["scalar"].shape == ()


@pytest.mark.parametrize("block", [1, 7, 64, 4096])
def test_blocks_may_begin_and_end_anywhere(tmp_path: Path, arrays, block: int, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    sums = write_arrays(tmp_path / "f", arrays)
    assert len(sums.blocks) == -(-sums.nbytes // block)
    assert same(read_arrays(tmp_path / "f", sums), arrays)
    check_file(tmp_path / "f", sums)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ("nothing", [True, True, True]),
        ("the flag", [False, False, False]),
        ("all but the first write", [True, False, False]),
        ("every write", [False, False, False]),
    ],
)
def test_large_files_go_past_the_cache_where_that_can_be(tmp_path: Path, refused: str, expected, monkeypatch) -> None:
    """9,000,123 bytes: two whole blocks and one that ends within a page."""
    takes = takes_direct(tmp_path)
    large = {"w": np.random.default_rng(0).integers(0, 255, 9_000_123, np.uint8)}
    fcntl, pwrite, past_cache = blocks.fcntl.fcntl, os.pwrite, []

    def control(handle: int, command: int, flags: int = 0) -> int:
        if refused == "the flag" and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "refused")
        return fcntl(handle, command, flags)

    def write(handle: int, data: memoryview, offset: int) -> int:
        direct = bool(fcntl(handle, blocks.fcntl.F_GETFL) & os.O_DIRECT)
        if direct and (refused == "every write" or (refused == "all but the first write" and offset)):
            raise OSError(errno.EINVAL, "refused")
        past_cache.append(direct)
        return pwrite(handle, data, offset)

    monkeypatch.setattr(blocks.fcntl, "fcntl", control)
    monkeypatch.setattr(os, "pwrite", write)
    sums = write_arrays(tmp_path / "f", large)
    assert (tmp_path / "f").stat().st_size == sums.nbytes
    assert same(read_arrays(tmp_path / "f", sums), large)
    assert past_cache == [takes and direct for direct in expected]


def takes_direct(folder: Path) -> bool:
    """Whether the file system of the tests does."""
    try:
        os.close(os.open(folder / "direct", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_more_arrays_than_one_call_writes(tmp_path: Path) -> None:
    many = {f"a{i}": np.full(3, i) for i in range(2500)}
    sums = write_arrays(tmp_path / "f", many)
    assert same(read_arrays(tmp_path / "f", sums), many)


def test_the_safetensors_library_reads_what_we_write(tmp_path: Path, arrays) -> None:
    import safetensors

    write_arrays(tmp_path / "f", arrays)
    with safetensors.safe_open(tmp_path / "f", "numpy") as found:
        assert set(found.keys()) == set(arrays)
        assert np.array_equal(found.get_tensor("é/ü"), arrays["é/ü"])
        assert found.get_slice("type bfloat16").get_dtype() == "BF16"


def test_we_read_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    from safetensors import numpy

    theirs = {"b": some("float64"), "a": some("int8"), "c": some("float32")}
    numpy.save_file(theirs, tmp_path / "f", metadata={"made by": "them"})
    data = (tmp_path / "f").read_bytes()
    assert same(read_arrays(tmp_path / "f", FileSums(len(data), [__import__("zlib").crc32(data)])), theirs)


def test_every_array_is_aligned_to_its_type(tmp_path: Path, arrays) -> None:
    import json

    write_arrays(tmp_path / "f", arrays)
    data = (tmp_path / "f").read_bytes()
    length = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + length]).items():
        assert (8 + length + entry["data_offsets"][0]) % arrays[name].dtype.itemsize == 0


def test_a_type_the_format_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="names is of type <U3"):
        write_arrays(tmp_path / "f", {"names": np.array(["abc"])})


@pytest.mark.parametrize("position", range(0, 1200, 13))
def test_a_flipped_bit_is_seen(tmp_path: Path, position: int) -> None:
    path = tmp_path / "f"
    sums = write_arrays(path, {"w": np.arange(200.0), "b": np.ones(3, np.float32)})
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << position % 8
    path.write_bytes(data)
    for read in (read_arrays, check_file):
        with pytest.raises(Damaged):
            read(path, sums)


def test_a_header_that_lies_about_sizes_asks_for_no_memory(tmp_path: Path) -> None:
    header = b'{"w": {"dtype": "F64", "shape": [1000000000000], "data_offsets": [0, 8000000000000]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(16)
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(Damaged, match="does not fit its data"):
        read_header(tmp_path / "f")
