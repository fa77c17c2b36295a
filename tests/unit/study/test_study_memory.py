"""Memory that is known to be there: a process's own, and what it shares."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from farandole.study.memory import anonymous_bytes, mapped_bytes

SIZE = 8 << 20


def test_memory_of_one_s_own_is_counted_to_the_page() -> None:
    before = anonymous_bytes()
    kept = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert anonymous_bytes() - before < SIZE / 16, "nothing has touched it yet"
    kept.write(b"x" * SIZE)
    assert anonymous_bytes() - before == pytest.approx(SIZE, rel=1 / 16)
    kept.close()
    assert abs(anonymous_bytes() - before) < SIZE / 16


def test_pages_that_two_processes_have_count_half(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
    values = np.frombuffer(mapped, np.uint8)
    values[::4096].sum()
    assert mapped_bytes(values.ctypes.data, SIZE) == SIZE
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        values[::4096].sum()
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        assert mapped_bytes(values.ctypes.data, SIZE) == SIZE // 2
    finally:
        os.write(done[1], b"1")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)
