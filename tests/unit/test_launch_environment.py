"""What a rank's environment holds: threads, the allocator, and what the user set."""

import os
import subprocess
import sys

import pytest

from farandole.launch.binding import numa_nodes, share_of_cores, share_of_nodes
from farandole.launch.environment import rank_environment, rank_threads

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


LIBRARIES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "PJRT_NPROC", "NPROC"
)  # fmt: skip


def test_every_library_gets_the_same_number_of_threads() -> None:
    added = rank_environment(3, True, {})
    assert {name: added[name] for name in LIBRARIES} == dict.fromkeys(LIBRARIES, "3")
    assert added["FARANDOLE_THREADS"] == "3"


def test_what_the_user_set_stays() -> None:
    added = rank_environment(3, True, {"MKL_NUM_THREADS": "7", "TF_NUM_INTEROP_THREADS": "5"})
    assert "MKL_NUM_THREADS" not in added
    assert "TF_NUM_INTEROP_THREADS" not in added
    assert added["OMP_NUM_THREADS"] == "3"


def test_threads_that_were_asked_for_are_every_library_s() -> None:
    base = {"OMP_NUM_THREADS": "7,2", "MKL_NUM_THREADS": "5", "TF_NUM_INTEROP_THREADS": "5"}
    added = rank_environment(3, True, base, asked=True)
    assert {name: added[name] for name in LIBRARIES} == dict.fromkeys(LIBRARIES, "3")
    assert "TF_NUM_INTEROP_THREADS" not in added  # these wait: there are always some


@pytest.mark.parametrize("mine", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_"])
def test_the_allocator_is_left_to_a_user_who_set_it(mine: str) -> None:
    assert not ALLOCATOR.keys() & rank_environment(1, True, {mine: "1"}).keys()


def test_the_allocator_is_tuned_unless_told_otherwise() -> None:
    assert rank_environment(1, True, {}).items() >= ALLOCATOR.items()
    untuned = rank_environment(1, False, {})
    assert not ALLOCATOR.keys() & untuned.keys()
    assert untuned["FARANDOLE_TUNE"] == "0"


def test_threads_are_asked_for_set_by_the_user_or_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert rank_threads(5, 2, {"OMP_NUM_THREADS": "3"}) == 5
    assert rank_threads(None, 2, {"OMP_NUM_THREADS": "3,2"}) == 3
    assert rank_threads(None, 1, {"OMP_NUM_THREADS": "junk"}) == 1
    assert rank_threads(None, 10_000, {}) == 1


def test_ranks_share_out_cores_and_start_over_when_there_are_none_left() -> None:
    cores = [4, 5, 6, 7]
    assert [share_of_cores(cores, rank, 2) for rank in range(3)] == [{4, 5}, {6, 7}, {4, 5}]
    assert share_of_cores(cores, 1, 3) == {7, 4, 5}


def test_neighbouring_ranks_share_a_numa_node() -> None:
    nodes = [{0, 1}, {2, 3}]
    assert [share_of_nodes(nodes, rank, 4) for rank in range(4)] == [{0, 1}, {0, 1}, {2, 3}, {2, 3}]
    assert share_of_nodes(nodes, 0, 1) == {0, 1}
    assert share_of_nodes([], 0, 1) == set()


def test_numa_nodes_hold_only_usable_cores() -> None:
    usable = sorted(os.sched_getaffinity(0))[:1]
    assert set().union(*numa_nodes(usable)) <= set(usable)


LARGEST_MAPPED = """
import ctypes
from farandole.launch.allocator import tune_allocator
word = tune_allocator()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
block = libc.malloc(100 << 20)
maps = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]")]
print(word, any(int(low, 16) <= block < int(high, 16) for low, high in maps))
"""


@pytest.mark.skipif(os.confstr("CS_GNU_LIBC_VERSION") is None, reason="mallopt means something in glibc only")
@pytest.mark.parametrize(
    ("environment", "printed"),
    [
        ({}, "mallopt True"),
        (ALLOCATOR, "environment True"),
        ({"FARANDOLE_TUNE": "0"}, "off False"),
        ({"MALLOC_ARENA_MAX": "2"}, "off False"),
    ],
)
def test_large_buffers_come_from_the_heap_once_the_allocator_is_tuned(
    environment: dict[str, str], printed: str
) -> None:
    base = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_", "FARANDOLE_"))
    }
    told = subprocess.run(
        [sys.executable, "-c", LARGEST_MAPPED], env=base | environment, capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert told.stdout.strip() == printed
