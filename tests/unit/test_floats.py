"""Compiled sums of floats: to the bit what array operations give, in every type, wherever the result goes."""

import ml_dtypes
import numpy as np
import pytest

from farandole.comm.node.arithmetic import LEAST_BYTES, Reduction, goes_compiled, prepare, sum_slices

WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
TYPES = ["float32", "float64", "float16", "bfloat16"]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw(dtype, count, arrays):
    """Numbers of many magnitudes, with some that are none."""
    rng = np.random.default_rng(count)
    drawn = [rng.standard_normal(count) * 10.0 ** rng.integers(-9, 6, count) for _ in range(arrays)]
    for array in drawn:
        array[: count // 7 : 3] = np.resize([np.inf, np.nan, 1e-45, -0.0, 3e38], len(array[: count // 7 : 3]))
    with np.errstate(over="ignore"):
        return [array.astype(dtype) for array in drawn]


def expected(arrays, how):
    wide = np.dtype(np.float32) if arrays[0].dtype.itemsize == 2 else arrays[0].dtype
    multiply, divide = map(wide.type, how.factors)
    with np.errstate(all="ignore"):
        total = arrays[0].astype(wide)
        for array in arrays[1:]:
            total += array.astype(wide)
        return (total * multiply / divide).astype(arrays[0].dtype)


def add_up(arrays, out, how, *, stream=False):
    addresses = np.array([array.ctypes.data for array in arrays])
    assert sum_slices(np.zeros(len(arrays), np.int64), addresses, out, how, stream=stream) is None


def assert_same_bits(found, wanted):
    word = WORDS[wanted.dtype.itemsize]
    number = ~np.isnan(wanted.astype(np.float64))
    assert (np.isnan(found.astype(np.float64)) == ~number).all()
    assert (found.view(word)[number] == wanted.view(word)[number]).all()


@pytest.mark.parametrize("count", [1, 100, 70_000, 200_003])
@pytest.mark.parametrize("arrays", [2, 3, 4])
@pytest.mark.parametrize("name", TYPES)
def test_sums_are_those_of_array_operations(name, arrays, count):
    dtype = dtype_of(name)
    given = draw(dtype, count, arrays)
    for how in (Reduction("sum"), Reduction("sum", 1.0, arrays), Reduction("sum", 0.3)):
        wanted, out = expected(given, how), np.empty(count, dtype)
        add_up(given, out, how)
        assert_same_bits(out, wanted)
        for place in range(arrays):
            copies = [array.copy() for array in given]
            add_up(copies, copies[place], how)
            assert_same_bits(copies[place], wanted)


@pytest.mark.parametrize("start", [0, 1, 15, 16, 17])
@pytest.mark.parametrize("arrays", [2, 3])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_results_past_the_cache_keep_within_their_bounds(name, arrays, start):
    dtype = dtype_of(name)
    given = draw(dtype, 70_001, arrays)
    room = np.full(70_001 + 100, 7, dtype)
    out = room[start : start + 70_001]
    for how in (Reduction("sum"), Reduction("sum", 1.0, arrays)):
        add_up(given, out, how, stream=True)
        assert_same_bits(out, expected(given, how))
    assert set(room[:start]) <= {7}
    assert set(room[start + 70_001 :]) == {7}


def test_memory_that_cannot_be_read_is_told():
    array = np.zeros(300_000, np.float32)
    pids, addresses = np.array([0, 2**22 + 1]), np.array([array.ctypes.data, array.ctypes.data])
    assert sum_slices(pids, addresses, array, Reduction("sum"), stream=False) == 1


def test_only_large_float_sums_are_compiled():
    large, total = 2 * LEAST_BYTES, Reduction("sum")
    assert all(goes_compiled(large, dtype_of(name), total) for name in TYPES)
    assert not goes_compiled(1000, dtype_of("float32"), total)
    assert not goes_compiled(large, np.dtype(np.int32), total)
    assert not goes_compiled(large, dtype_of("float32"), Reduction("max"))


def test_types_that_are_not_compiled_need_no_preparation():
    prepare(np.dtype(np.complex64))
