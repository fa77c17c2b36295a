"""However arrays travel, and however operations are fused, the bits of the result are the same."""

import hashlib
import time
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ranktest import rank_test, run_ranks

WAYS = {
    "direct": {"FARANDOLE_NODE_EXCHANGE": "direct"},
    "window": {"FARANDOLE_NODE_EXCHANGE": "window"},
    "none": {"FARANDOLE_NODE_EXCHANGE": "none"},
    "flat": {"FARANDOLE_NODE_ALGORITHMS": "*=flat"},
    "sliced": {"FARANDOLE_NODE_ALGORITHMS": "*=sliced"},
    "cross exchange": {"FARANDOLE_NODE_EXCHANGE": "none", "FARANDOLE_CROSS_ALGORITHMS": "*=exchange"},
}


def awkward(rank, count, dtype):
    """Floats of many magnitudes: their sum shows the order in which it was made."""
    rng = np.random.default_rng([rank, count])
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(dtype)


def fingerprints(fd, ways):
    """A digest for each operation, type and size; `ways` is how arrays are expected to travel."""
    found = {}
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        large = {np.float32: (3_300_001,), np.float64: (1_000_003,)}.get(dtype, ())
        for count in (5, 2_000, 33_333, 200_003, *large):
            mine = awkward(fd.rank(), count, dtype)
            for name, op in (("sum", fd.Sum), ("average", fd.Average), ("product", fd.Product)):
                result = fd.allreduce(mine, op=op)
                key = f"{name} of {count} {np.dtype(dtype).name}"
                found[key] = hashlib.blake2b(result.tobytes(), digest_size=8).hexdigest()
            result = fd.reducescatter(mine, op=fd.Sum)
            everywhere = fd.allgather(result)
            assert everywhere.tobytes() == fd.allreduce(mine, op=fd.Sum).tobytes()
    assert fd.global_process_set.runtime().lane.two_level(1).kind == ways
    return found


@pytest.fixture
def without_numba(tmp_path):
    """Ranks for whom numba is not installed."""
    (tmp_path / "numba.py").write_text("raise ImportError('hidden')\n")
    return {"PYTHONPATH": str(tmp_path)}


FEW = ("window", "none")


@pytest.mark.more
def test_every_way_gives_the_same_bits_on_every_rank(ranks, without_numba):
    check_bits(ranks, {"by default": {}, **{name: WAYS[name] for name in FEW}, "not compiled": without_numba})


@pytest.mark.soak
def test_every_other_way_gives_the_same_bits_in_every_run(ranks):
    check_bits(ranks, {**{name: env for name, env in WAYS.items() if name not in FEW}, "again": {}})


def check_bits(ranks, ways):
    reference = None
    for name, env in ways.items():
        kind = {"window": "window", "none": "mpi", "cross exchange": "mpi"}.get(name, "direct")
        of_ranks = ranks(3, fingerprints, kind, env=env)
        reference = reference or of_ranks[0]
        for rank, found in enumerate(of_ranks):
            odd = [key for key in reference if found[key] != reference[key]]
            assert not odd, f"{name}, rank {rank}: {odd}"


@rank_test(n=[3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_made_in_rank_order(fd, dtype):
    for count in (7, 5_000, 300_001):
        total = awkward(0, count, dtype)
        for rank in range(1, fd.size()):
            total = total + awkward(rank, count, dtype)
        found = fd.allreduce(awkward(fd.rank(), count, dtype), op=fd.Sum)
        assert found.tobytes() == total.tobytes(), count


@rank_test(n=4, timeout=60)
def test_bits_do_not_depend_on_what_was_fused(fd):
    arrays = [awkward(fd.rank(), 3_000 + i, np.float32) for i in range(60)]
    singly = [fd.allreduce(array, op=fd.Sum) for array in arrays]
    rng = np.random.default_rng(fd.rank())
    for _ in range(3):
        handles = []
        for i, array in enumerate(arrays):
            handles.append(fd.allreduce_async(array, name=f"fused.{i}", op=fd.Sum))
            if rng.random() < 0.1:
                time.sleep(0.002)
        for handle, alone in zip(handles, singly):
            assert fd.synchronize(handle).tobytes() == alone.tobytes()
    together = fd.grouped_allreduce(arrays, op=fd.Sum)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(together, singly))


@rank_test(n=2, env={"FARANDOLE_NODE_EXCHANGE": "window"})
def test_a_window_grows_with_the_arrays(fd):
    for count in (100_000, 6_000_000, 300_000, 9_000_000):
        found = fd.allreduce(np.full(count, fd.rank() + 1, np.float32), op=fd.Sum)
        assert (found == 3).all()


@rank_test(n=2, env={"FARANDOLE_FUSION_THRESHOLD": "1000"})
def test_packs_end_at_the_fusion_threshold(fd):
    arrays = [np.full(i, i + fd.rank(), np.float32) for i in range(200)]
    for i, found in enumerate(fd.grouped_allreduce(arrays, op=fd.Sum)):
        assert found.tolist() == [2 * i + 1] * i


@rank_test(n=2, env={"FARANDOLE_NODE_EXCHANGE": "window"})
def test_without_room_to_share_arrays_travel_over_mpi_and_that_is_said_once(fd):
    from farandole.comm.node import shared

    kept, shared.FOLDER = shared.FOLDER, Path("/nonexistent")
    try:
        runtime = fd.global_process_set.runtime()
        runtime.lane._two_level = None  # as in a run that starts here
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                found = fd.allreduce(np.full(400_000, fd.rank() + 1.0), op=fd.Sum)
                assert (found == 3).all()
    finally:
        shared.FOLDER = kept
    assert runtime.lane.two_level(1).kind == "mpi"
    texts = [str(w.message) for w in said if "/nonexistent" in str(w.message)]
    assert len(texts) == (1 if fd.rank() == 0 else 0)
    assert any("/nonexistent" in reason for reason in fd.describe()["fallbacks"])


@pytest.mark.parametrize(("scope", "during", "after"), [("1", {2**64 - 1}, {2**64 - 1, 0}), ("0", set(), set())])
def test_memory_is_open_to_others_only_where_yama_asks_for_it_and_only_while_neighbours_read_it(tmp_path, scope, during, after):
    script = """
        import sys
        from pathlib import Path
        import numpy as np
        import farandole as fd
        from farandole.comm.node import exchange
        agreed = set()
        exchange.YAMA, exchange._libc.prctl = Path(sys.argv[1]), lambda option, who, *_: agreed.add(who.value)
        fd.init()
        fd.allreduce(np.ones(100_000))
        during = sorted(agreed)
        fd.shutdown()
        result([during, sorted(agreed)])
    """
    (tmp_path / "scope").write_text(f"{scope}\n")
    run = run_ranks(2, script, args=[str(tmp_path / "scope")])
    assert run.results == [[sorted(during), sorted(after)]] * 2


def bad_setting(fd):
    with pytest.raises(ValueError, match=r"unknown node algorithm 'rings'; known: flat, sliced"):
        fd.allreduce(np.ones(100_000))


def test_a_wrong_algorithm_is_named(ranks):
    ranks(2, bad_setting, env={"FARANDOLE_NODE_ALGORITHMS": "*=rings"})


def tiny_and_odd(fd):
    """Averages of numbers at the edges of float32, in an array large enough to be summed in one compiled call."""
    from farandole.comm.node import arithmetic

    edges = np.float32([1e-45, 3e-45, -1e-45, 1.1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.0, -0.0, 1 / 3])
    result = fd.allreduce(np.resize(np.roll(edges, fd.rank()), 1 << 20), op=fd.Average)
    return arithmetic.load()[0] is not None, np.where(np.isnan(result), np.float32(7), result)[:24].view(np.int32)


@pytest.mark.parametrize("size", [2, 3])
def test_compiled_sums_are_the_interpreted_ones_at_the_edges_too(ranks, size, without_numba):
    (compiled, bits), (interpreted, expected) = (
        ranks(size, tiny_and_odd, env=env)[0] for env in ({}, without_numba)
    )
    assert compiled and not interpreted
    assert bits == expected
