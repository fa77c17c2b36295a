"""More than 2**31 elements in one array."""

from pathlib import Path

import numpy as np
import pytest

from ranktest import rank_test

COUNT = 2**31 + 17


def enough_memory(gb=7):
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return available > gb << 20  # kB


@pytest.mark.soak
@pytest.mark.skipif(not enough_memory(), reason="needs 7 GB of free memory")
@rank_test(n=2, timeout=90)
def test_more_elements_than_32_bits_can_count(fd):
    array = np.zeros(COUNT, np.uint8)
    marks = [0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1]
    array[marks] = fd.rank() + 1
    array[12345 + fd.rank()] = 7
    fd.allreduce_(array, op=fd.Sum)
    assert array[marks].tolist() == [3] * len(marks)
    assert array[12345:12347].tolist() == [7, 7]
    assert np.count_nonzero(array) == len(marks) + 2


@pytest.mark.soak
@pytest.mark.skipif(not enough_memory(10), reason="needs 10 GB of free memory")
@rank_test(n=2, door="torch", timeout=170)
def test_averaging_more_floats_than_32_bits_can_count(hvd):
    import torch

    tensor = torch.zeros(COUNT, dtype=torch.bfloat16)
    marks = [0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1]
    tensor[marks] = 2.0 * hvd.rank() + 1
    tensor[12345 + hvd.rank()] = 6.0
    hvd.allreduce_(tensor)
    assert tensor[marks].tolist() == [2.0] * len(marks)
    assert tensor[12345:12347].tolist() == [3.0, 3.0]
    assert tensor.count_nonzero() == len(marks) + 2


@pytest.mark.soak
@pytest.mark.skipif(not enough_memory(), reason="needs 7 GB of free memory")
@rank_test(n=2, timeout=90)
def test_sending_more_elements_than_32_bits_can_count(fd):
    array = np.zeros(COUNT, np.uint8)
    marks = [0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1]
    array[marks] = np.arange(6) + 10 * fd.rank()
    fd.broadcast_(array, 1)
    assert array[marks].tolist() == [10, 11, 12, 13, 14, 15]
    assert np.count_nonzero(array) == len(marks)


@pytest.mark.soak
@pytest.mark.skipif(not enough_memory(), reason="needs 7 GB of free memory")
@rank_test(n=2, timeout=90)
def test_gathering_more_than_one_message_holds(fd):
    rows = [2**30 + 5, 3]
    mine = np.full(rows[fd.rank()], fd.rank() + 1, np.uint8)
    for found in (fd.allgather(mine), fd.gather(mine, 1)):
        if found is None:
            assert fd.rank() == 0
            continue
        assert found.shape == (sum(rows),)
        assert found[[0, 2**30 - 1, 2**30, -4, -3, -1]].tolist() == [1, 1, 1, 1, 2, 2]
        assert np.count_nonzero(found == 1) == rows[0]
        del found
