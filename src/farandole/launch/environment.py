"""What a rank finds in its environment: threads for every numerical library, and the allocator's thresholds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "ALLOCATOR_VARIABLES",
    "THREAD_VARIABLES",
    "WAITING_THREADS",
    "allocator_set_by_user",
    "cgroup_cores",
    "given_threads",
    "rank_environment",
    "rank_threads",
    "thread_variables",
    "usable_cores",
]

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    # XLA's CPU client (JAX) sizes its pools by these; --xla_cpu_multi_thread_eigen no longer reaches them.
    "PJRT_NPROC",
    "NPROC",
)
OWN_THREADS = "FARANDOLE_THREADS"
WAITING_THREADS = 4
"""Of TensorFlow's executor, at least: a model that waits for other ranks must not stop the others of this one."""

# glibc hands buffers above the first threshold back at every free, and the heap's end above the second.
# The tunable asks for huge pages, from which neighbours read each other's gradients faster.
ALLOCATOR_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def rank_environment(threads: int, tune: bool, base: Mapping[str, str], *, asked: bool = False) -> dict[str, str]:
    """The variables to add to `base` for one rank; what it sets already stays, except for threads that were `asked` for."""
    wanted = thread_variables(threads)
    wanted["TF_NUM_INTEROP_THREADS"] = str(WAITING_THREADS)
    # Lines of a rank that dies are not lost in its buffer.
    wanted["PYTHONUNBUFFERED"] = "1"
    if tune and not allocator_set_by_user(base):
        wanted |= ALLOCATOR_VARIABLES
    kept = base.keys() - (THREAD_VARIABLES if asked else ())
    added = {name: value for name, value in wanted.items() if name not in kept}
    return added | {OWN_THREADS: str(threads)} | ({} if tune else {"FARANDOLE_TUNE": "0"})


def thread_variables(threads: int) -> dict[str, str]:
    """What tells every numerical library, and our doors, to compute with so many threads."""
    return dict.fromkeys((*THREAD_VARIABLES, OWN_THREADS), str(threads))


def given_threads(environment: Mapping[str, str]) -> int | None:
    """Threads that the launcher or `farandole run` gave this rank; None where it was started otherwise."""
    threads = environment.get(OWN_THREADS, "")
    return int(threads) if threads.isdecimal() and int(threads) > 0 else None


def rank_threads(asked: int | None, local_ranks: int, base: Mapping[str, str]) -> int:
    """Threads of one rank: as asked, as the user's OMP_NUM_THREADS says, or its share of the cores."""
    if asked is not None:
        return asked
    first = base.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if first.isdecimal() and int(first) > 0:
        return int(first)
    return max(1, usable_cores() // local_ranks)


def allocator_set_by_user(base: Mapping[str, str]) -> bool:
    return any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in base)


def usable_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    return max(1, min(len(os.sched_getaffinity(0)), cgroup_cores()))


def cgroup_cores() -> int:
    """At most so many at a time, whichever they are."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        # No cgroup v2 here, or a quota of "max".
        return os.cpu_count() or 1
