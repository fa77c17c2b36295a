"""Where /dev/shm is small or full, ranks take a slower way or say what they lack; none is killed by a bus error."""

import shutil
import subprocess

import pytest

from ranktest import run_ranks
from ranktest.library import make

UNSHARE = ["unshare", "-rm", "sh", "-c"]


def can_mount():
    mount = [*UNSHARE, "mount -t tmpfs tmpfs /dev/shm"]
    return shutil.which("unshare") is not None and subprocess.run(mount, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.skipif(make() != "mpich", reason="what a library needs is known of MPICH alone"),
    pytest.mark.skipif(not can_mount(), reason="mounts a /dev/shm of its own in a namespace, which this system forbids"),
]


def with_shm(size):
    """Turns a command into one for which /dev/shm has that size."""
    return lambda command: [*UNSHARE, f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh", *command]


COLLECTIVES = """
    import numpy as np, farandole as fd
    fd.init()
    n, rank = fd.size(), fd.rank()
    for count in (3, 50_000, 3_000_000):
        total = fd.allreduce(np.full(count, rank + 1.0, np.float32), op=fd.Sum)
        assert (total == n * (n + 1) / 2).all()
        assert (fd.broadcast(np.full(count, float(rank)), 1) == 1).all()
"""

TRAINING = """
    import os
    import torch
    import farandole.torch as hvd
    from farandole.data import read_matrix

    def train():
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (5, 300_000, 2_000_000)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * (rank + 1)).sum() for p in parameters).backward()
            optimizer.step()
        assert all((p == -3 * (n + 1) / 2).all() for p in parameters)
        return optimizer

    kept = train()
    after_first = list(fd.describe()["fallbacks"])
    fd.barrier()
    if rank == 0:
        with open("/dev/shm/others", "wb") as file:
            left = os.statvfs("/dev/shm")
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)
        with open("table.csv", "w") as file:
            file.write("1,2\\n3,4\\n" * 2000)
    fd.barrier()
    train()
    assert read_matrix("table.csv", header=False).values.sum() == 20_000
    result([after_first, fd.describe()["fallbacks"]])
"""


@pytest.mark.parametrize("n", [2, 3])
def test_too_little_for_the_library_is_an_error_that_says_how_much_it_needs(n):
    run = run_ranks(n, COLLECTIVES, within=with_shm("256k"), timeout=60, expect=None)
    assert run.returncode != 0
    assert f"/dev/shm has 256 KiB free; MPICH needs {n * 1056} KiB there for {n} ranks" in run.stderr
    assert "--shm-size" in run.stderr


@pytest.mark.parametrize(("n", "size"), [(2, "16m"), (2, "18m"), (3, "4m")])
def test_what_the_library_alone_has_room_for_gives_right_results(n, size):
    run_ranks(n, COLLECTIVES, within=with_shm(size), timeout=60)


@pytest.mark.parametrize(("n", "size"), [(2, "3m"), (3, "4m")])
def test_training_goes_on_where_there_is_little_room_or_none_and_says_so(n, size):
    run = run_ranks(n, COLLECTIVES + TRAINING, within=with_shm(size), timeout=100)
    little, none = run.results[0]
    assert "no window for results (/dev/shm has no room for" in little[0]
    assert "--shm-size" in little[0] and run.stderr.count(little[0]) == 1
    assert any("cannot share memory (/dev/shm has no room for" in reason for reason in none)
