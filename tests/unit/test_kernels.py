"""Arithmetic on arrays: NumPy's kernels, and torch's against them."""

import ml_dtypes
import numpy as np
import pytest

from farandole.comm.node.arithmetic import NumpyKernels, Op, Reduction

KERNELS = NumpyKernels()
OPERATIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


def finished(values, dtype, **how):
    total = np.array(values, KERNELS.accumulator(np.dtype(dtype)))
    out = np.empty(total.shape, dtype)
    KERNELS.finish(Reduction("sum", **how), total, out)
    return out.tolist()


def test_codes_are_horovod_s():
    assert [Op.AVERAGE, Op.SUM, Op.ADASUM, Op.MIN, Op.MAX, Op.PRODUCT] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers_are_divided_exactly_and_cut_towards_zero(dtype):
    lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = [7, -7, 0, 1, -1, lowest, lowest + 1, highest]
    for divide in (2, 3, 7):
        assert finished(values, dtype, divide=divide) == [
            int(abs(v) // divide) * (1 if v > 0 else -1) for v in values
        ]


def test_unsigned_integers_are_divided_exactly():
    assert finished([2**64 - 1, 5], np.uint64, divide=2) == [2**63 - 1, 2]
    assert finished([255, 5], np.uint8, divide=3) == [85, 1]


def test_more_ranks_than_a_type_can_count():
    assert finished([100, -100], np.int8, divide=200) == [0, 0]
    assert finished([100, -100], np.int8, divide=50) == [2, -2]


def test_integers_are_scaled_in_float64():
    big = 2**40 + 1
    assert finished([big], np.int64, multiply=2.0) == [2 * big]
    assert finished([-7, 7], np.int32, multiply=0.5) == [-3, 3]
    assert finished([-7, 7], np.int32, multiply=0.5, divide=2) == [-1, 1]


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("factor", [2, 3])
def test_factors_that_cancel_out_leave_the_sum(dtype, factor):
    assert finished([3, -5], dtype, multiply=float(factor), divide=factor) == [3, -5]
    a, b, total, out = (np.full(2, value, dtype) for value in (3, 4, 99, 98))
    KERNELS.last(Reduction("sum", float(factor), factor), a, b, total.astype(KERNELS.accumulator(a.dtype)), out)
    assert out.tolist() == [7, 7]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_kept_in_float32(dtype):
    assert KERNELS.accumulator(np.dtype(dtype)) == np.float32
    total = np.empty(1, np.float32)
    one = np.ones(1, dtype)
    KERNELS.first("sum", one * 2048, one, total)
    KERNELS.add("sum", total, one)
    assert total == 2050  # in the type itself, the ones would be lost
    assert finished([120_000.0], np.float16, divide=2) == [60_000]


HOW = [{}, {"divide": 2}, {"divide": 3}, {"multiply": 0.3}, {"multiply": -2.0, "divide": 4}]


def combined(kernels, combine, dtype, how):
    """Two arrays, and what the kernels make of them."""
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal(1001) * 50).astype(dtype) for _ in range(2))
    out = np.empty(1001, dtype)
    kernels.last(Reduction(combine, **how), a, b, np.empty(1001, kernels.accumulator(dtype)), out)
    return a, b, out


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int16])
@pytest.mark.parametrize("combine", OPERATIONS)
def test_arrays_are_combined_and_scaled(combine, dtype, how):
    a, b, found = combined(KERNELS, combine, np.dtype(dtype), how)
    multiply, divide = how.get("multiply", 1.0), how.get("divide", 1)
    wanted = OPERATIONS[combine](a.astype(np.float64), b.astype(np.float64)) * multiply / divide
    # Of integers and 16-bit floats: what their type has no room for, and a step of rounding.
    integer = found.dtype.kind == "i"
    room = np.abs(wanted) < (2**15 if integer else 6e4)
    rounding = 1 if integer else 2 * float(ml_dtypes.finfo(dtype).eps) * np.abs(wanted)
    assert room.any() and (np.abs(found.astype(np.float64) - wanted) <= rounding)[room].all()


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("combine", OPERATIONS)
def test_torch_gives_the_same_bits(combine, dtype, how):
    from farandole.torch.kernels import SixteenBitKernels

    of_torch, of_numpy = (combined(k, combine, np.dtype(dtype), how)[2] for k in (SixteenBitKernels(), KERNELS))
    assert of_torch.tobytes() == of_numpy.tobytes()


@pytest.mark.filterwarnings("error")
def test_an_overflow_is_a_result_and_no_warning():
    big = np.full(3, 3e38, np.float32)
    total = np.empty(3, np.float32)
    KERNELS.first("sum", big, big, total)
    assert np.isinf(total).all()
    assert finished([1e6], np.float16) == [np.inf]
    KERNELS.add("sum", total, -total)
    assert np.isnan(total).all()
