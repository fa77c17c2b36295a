"""Allreduce of NumPy arrays: every type, operation, size and form."""

import ml_dtypes
import numpy as np
import pytest

from ranktest import rank_test

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
OPS = ["Average", "Sum", "Min", "Max", "Product"]
# One value; small (MPI's own reduction, or every rank the whole array); large and divisible by nothing.
COUNTS = (1, 1001, 300_007)


def type_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def values(rank, dtype, count):
    """Different on every rank, and small enough for every type to hold sums and products exactly."""
    return (np.arange(rank, rank + count) % 5 - (1 if dtype.kind != "u" else 0)).astype(dtype)


def expected(op, arrays):
    dtype = arrays[0].dtype
    if dtype == np.bool_:
        return (np.logical_or if op in ("Sum", "Max") else np.logical_and).reduce(arrays)
    wide = np.array(arrays, np.float64)
    if op == "Average":
        mean = wide.sum(0) / len(arrays)
        return (np.trunc(mean) if dtype.kind in "iu" else mean.astype(np.float32)).astype(dtype)
    return {"Sum": wide.sum, "Min": wide.min, "Max": wide.max, "Product": wide.prod}[op](0).astype(dtype)


def same(found, wanted):
    """Bit for bit, type and shape included."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    odd = np.flatnonzero(found.reshape(-1).view(np.uint8) != wanted.reshape(-1).view(np.uint8))
    assert odd.size == 0, (
        f"{odd.size} bytes differ, from {odd[0]}: {found.reshape(-1)[:5]} {wanted.reshape(-1)[:5]}"
    )


@rank_test(n=[1, 2, 3], shipped=True)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_operation_at_every_size(fd, dtype, op):
    kind = type_of(dtype)
    if (dtype, op) == ("bool", "Average"):
        with pytest.raises(ValueError, match="bool has no average"):
            fd.allreduce(np.ones(3, bool))
        return
    for count in COUNTS:
        arrays = [values(rank, kind, count) for rank in range(fd.size())]
        mine = arrays[fd.rank()].copy()
        found = fd.allreduce(mine, op=getattr(fd, op))
        wanted = expected(op, arrays)
        if kind == np.float64 and op == "Average":
            wanted = np.array(arrays).sum(0) / fd.size()
        same(found, wanted)
        same(mine, arrays[fd.rank()])  # the input is left alone


@rank_test(n=[2, 3], shipped=True)
def test_the_default_is_the_average(fd):
    mean = (fd.size() - 1) / 2
    assert fd.allreduce(np.full(3, fd.rank(), np.float32)).tolist() == [mean] * 3
    assert fd.allreduce([float(fd.rank())]).tolist() == [mean]
    assert fd.allreduce(np.float64(fd.rank())) == mean


@rank_test(n=2)
def test_average_is_the_old_word_for_op(fd):
    assert fd.allreduce(np.ones(2), average=False).tolist() == [2, 2]
    assert fd.allreduce(np.ones(2), average=True).tolist() == [1, 1]
    with pytest.raises(ValueError, match="op or average, not both"):
        fd.allreduce(np.ones(2), average=True, op=fd.Sum)
    with pytest.raises(ValueError, match="op=9"):
        fd.allreduce(np.ones(2), op=9)


@rank_test(n=2)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("count", [3, 600_001])
def test_an_average_of_integers_is_cut_towards_zero(fd, dtype, count):
    for pair, mean in (([1, 2], 1), ([-1, -2], -1), ([-1, 2], 0), ([-64, -64], -64), ([0, -3], -1)):
        found = fd.allreduce(np.full(count, pair[fd.rank()], dtype))
        assert found[0] == mean and (found == mean).all(), (pair, found[:3])


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("count", [3, 600_001, 2_100_001])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
def test_an_average_of_integers_whose_sum_is_out_of_range(fd, dtype, count):
    """By MPI's own sum, in the node's memory, and in more than one part."""
    highest, lowest = np.iinfo(dtype).max, np.iinfo(dtype).min
    for value in (highest, lowest, highest - 55):
        array = np.full(count, value, dtype)
        array[-1] = value - (1 if fd.rank() and value > lowest else 0)
        last = int((value * fd.size() - (fd.size() - 1) * (value > lowest)) / fd.size())
        wanted = np.full(count, value, dtype)
        wanted[-1] = last
        same(fd.allreduce(array), wanted)
        fd.grouped_allreduce_([array, few := array[-2:].copy()])
        same(array, wanted)
        same(few, wanted[-2:])
        rows = fd.reducescatter(np.full(7, value, dtype))
        same(rows, np.full(rows.size, value, dtype))


@rank_test(n=2)
@pytest.mark.parametrize("count", [3, 300_001])
def test_a_scaled_sum_of_narrow_integers_does_not_wrap(fd, count):
    found = fd.allreduce(np.full(count, 100, np.int8), op=fd.Sum, postscale_factor=0.25)
    assert (found == 50).all(), found[:3]
    wrapped = fd.allreduce(np.full(count, 100, np.int8), op=fd.Sum)
    assert (wrapped == -56).all(), wrapped[:3]


@rank_test(n=2)
def test_an_average_of_64_bit_integers_is_exact(fd):
    big = 2**61 + 1
    assert fd.allreduce(np.array([big, -big])).tolist() == [big, -big]
    lowest = np.iinfo(np.int64).min // 2
    assert fd.allreduce(np.array([lowest])).tolist() == [lowest]


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("count", [3, 300_001])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_scale_factors_multiply_before_and_after(fd, dtype, count):
    ones = np.ones(count, type_of(dtype))
    found = fd.allreduce(ones, op=fd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    same(found, np.full(count, 1.5 * fd.size(), type_of(dtype)))
    found = fd.allreduce(ones, prescale_factor=4.0)
    same(found, np.full(count, 4, type_of(dtype)))
    found = fd.allreduce(ones * -2, op=fd.Min, prescale_factor=-2.0, postscale_factor=0.25)
    same(found, np.full(count, 1, type_of(dtype)))
    found = fd.allreduce(ones, op=fd.Product, prescale_factor=2.0, postscale_factor=0.5)
    same(found, np.full(count, 2.0 ** fd.size() / 2, type_of(dtype)))


@rank_test(n=2)
@pytest.mark.parametrize("count", [3, 300_001])
def test_integers_are_scaled_in_float64_and_cut(fd, count):
    found = fd.allreduce(np.full(count, 3), op=fd.Sum, prescale_factor=0.5)
    assert (found == 2).all(), found[:3]  # 1.5 is cut on each rank
    found = fd.allreduce(np.full(count, 3), op=fd.Sum, postscale_factor=0.25)
    assert (found == 1).all(), found[:3]
    found = fd.allreduce(np.full(count, -3), op=fd.Sum, postscale_factor=0.25)
    assert (found == -1).all(), found[:3]
    exact = 2**40 + 1  # more than float32 holds
    found = fd.allreduce(np.full(count, exact), op=fd.Sum, postscale_factor=2.0)
    assert (found == 4 * exact).all(), found[:3]


@rank_test(n=2)
@pytest.mark.parametrize("count", [3, 300_001])
def test_a_prescale_keeps_sums_within_range(fd, count):
    found = fd.allreduce(np.full(count, 100, np.int8), op=fd.Sum, prescale_factor=0.5)
    assert (found == 100).all(), found[:3]
    found = fd.allreduce(np.full(count, 3e38, np.float32), op=fd.Sum, prescale_factor=0.5)
    assert (found == np.float32(3e38)).all(), found[:3]


@rank_test(n=[2, 3])
@pytest.mark.parametrize("count", [5, 40_000])
def test_sums_of_16_bit_floats_are_rounded_once(fd, count):
    big = np.full(count, 60_000 if fd.rank() == 0 else 5_000, np.float16)
    assert (fd.allreduce(big) == np.float16((60_000 + 5_000 * (fd.size() - 1)) / fd.size())).all()
    fine = np.full(count, 256 if fd.rank() == 0 else 0.5, ml_dtypes.bfloat16)
    total = fd.allreduce(fine, op=fd.Sum)
    assert (total == ml_dtypes.bfloat16(256 + 0.5 * (fd.size() - 1))).all()


@rank_test(n=[2, 3])
@pytest.mark.parametrize("count", [4, 90_000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_not_a_number_on_one_rank_shows_on_all(fd, dtype, count):
    for op in (fd.Min, fd.Max, fd.Sum, fd.Average, fd.Product):
        for odd in range(fd.size()):
            array = np.full(count, np.nan if fd.rank() == odd else fd.rank() + 1, dtype)
            assert np.isnan(fd.allreduce(array, op=op)).all(), (op, odd)


@rank_test(n=[1, 2])
@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_compression_rounds_floats_on_the_way_and_leaves_the_rest(fd, wire):
    how = getattr(fd.Compression, wire)
    short = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[wire]
    array = np.linspace(0.1, 1, 1001, dtype=np.float64)
    found = fd.allreduce(array, op=fd.Sum, compression=how)
    rounded = array.astype(short).astype(np.float32) * fd.size()
    same(found, rounded.astype(short).astype(np.float64))
    assert fd.allreduce(np.array([2**20 + 1]), op=fd.Sum, compression=how).tolist() == [
        (2**20 + 1) * fd.size()
    ]
    several = fd.grouped_allreduce([array, array.astype(np.float32)], op=fd.Sum, compression=how)
    assert [a.dtype for a in several] == [np.float64, np.float32]
    same(several[0], found)


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("count", [1, 70_000])
def test_in_place_forms_change_the_array_itself(fd, count):
    total = sum(range(fd.size()))
    array = np.full((count, 2), fd.rank(), np.float32)
    assert fd.allreduce_(array, op=fd.Sum) is array
    assert (array == total).all()
    array[:] = fd.rank()
    assert fd.synchronize(fd.allreduce_async_(array, op=fd.Sum)) is array
    assert (array == total).all()
    array[:] = fd.rank()
    assert fd.average(array) is array
    assert (array == total / fd.size()).all()


@rank_test(n=[1, 2])
def test_in_place_on_a_single_value(fd):
    array = np.array(float(fd.rank() + 1))
    fd.allreduce_(array, op=fd.Sum)
    assert array == sum(range(1, fd.size() + 1))
    half = np.array(2.0, np.float16)
    fd.allreduce_(half, op=fd.Sum)
    assert half == 2 * fd.size()


@rank_test(n=2)
@pytest.mark.parametrize("count", [4, 300_000])
def test_in_place_needs_memory_that_may_be_written(fd, count):
    array = np.ones(count)
    array.flags.writeable = fd.rank() == 0
    name = f"read_only.{count}"
    if fd.rank() == 1:
        with pytest.raises(ValueError, match="read-only"):
            fd.allreduce_(array, name=name)
        with pytest.raises(ValueError, match="read-only"):
            fd.broadcast_(array, 0, name=name)
        array.flags.writeable = True
    assert fd.allreduce_(array, name=name)[0] == 1


@rank_test(n=[1, 2, 3])
def test_a_group_is_reduced_as_one(fd):
    shapes = [(), (3,), (2, 5), (0,), (100_003,), (7, 1, 2)]
    kinds = [np.float32, np.float64, np.int32, np.float32, np.float32, np.float16]
    mine = [np.full(shape, fd.rank() + 1, kind) for shape, kind in zip(shapes, kinds)]
    total = sum(range(1, fd.size() + 1))

    def check(found):
        for array, shape, kind in zip(found, shapes, kinds):
            same(array, np.full(shape, total, kind))

    check(fd.grouped_allreduce(mine, op=fd.Sum))
    check(fd.synchronize(fd.grouped_allreduce_async(mine, op=fd.Sum)))
    copies = [array.copy() for array in mine]
    assert all(a is b for a, b in zip(fd.grouped_allreduce_(copies, op=fd.Sum), copies))
    check(copies)
    check(fd.synchronize(fd.grouped_allreduce_async_([array.copy() for array in mine], op=fd.Sum)))
    assert fd.grouped_allreduce([]) == []


@rank_test(n=[1, 2])
@pytest.mark.parametrize("rows", [6, 900])
def test_any_layout_of_memory(fd, rows):
    base = np.arange(rows * rows, dtype=np.float32).reshape(rows, rows) + fd.rank()
    total = (base - fd.rank()) * fd.size() + sum(range(fd.size()))
    for pick in (
        lambda a: a.T,
        lambda a: a[::2, 1::3],
        lambda a: a[::-1],
        lambda a: a[:, ::-1],
        lambda a: a[1:2],
        lambda a: np.asfortranarray(a),
        lambda a: a[:0],
        lambda a: a[2, 3],
    ):
        found = fd.allreduce(pick(base), op=fd.Sum)
        assert found.shape == pick(base).shape and (found == pick(total)).all()
        changed = base.copy()
        view = pick(changed)
        if isinstance(view, np.ndarray):
            fd.allreduce_(view, op=fd.Sum)
            assert (view == pick(total)).all()
    whole = base.copy()
    fd.allreduce_(whole[::2], op=fd.Sum)
    assert (whole[1::2] == base[1::2]).all()  # what lies between is left alone


@rank_test(n=2)
def test_types_that_cannot_travel_are_refused(fd):
    for odd in (np.array([{}, None]), np.array(["a", "b"]), np.array([0, 1], "M8[s]")):
        for call in (fd.allreduce, fd.allgather, fd.alltoall, fd.reducescatter):
            with pytest.raises(ValueError, match=r"float32"):
                call(odd)
        with pytest.raises(ValueError, match=r"float32"):
            fd.broadcast(odd, 0)
    with pytest.raises(ValueError, match="byte order"):
        fd.allreduce(np.ones(3, ">f4"))


@rank_test(n=2)
def test_buffers_that_match_and_buffers_that_do_not(fd):
    same_everywhere, different = np.arange(6.0), np.array([fd.rank()])
    assert fd.check_buffers_match([same_everywhere, same_everywhere[::2]]) == 0
    assert fd.check_buffers_match([same_everywhere, different, different]) == 2
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        fd.check_buffers_match([different] * (fd.rank() + 1))
