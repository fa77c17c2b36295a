"""Every collective between ranks on two hosts, over their network."""

import pytest

from hosts import Network
from ranktest import run_ranks

SCRIPT = """
import socket
import numpy as np
import farandole as fd

fd.init()
rank, size = fd.rank(), fd.size()
ranks = range(size)

# Packed and whole, below and above the size at which hosts share the work.
for dtype in ("float32", "float16", "int64"):
    for count in (1, 1000, 400_001):
        pattern = np.arange(count) % 5
        mine = (pattern + rank).astype(dtype)
        total = fd.allreduce(mine, op=fd.Sum)
        assert np.array_equal(total.astype("f8"), size * pattern + sum(ranks)), (dtype, count)
        assert np.array_equal(fd.allreduce(mine, op=fd.Min), pattern.astype(dtype)), (dtype, count)

pair = fd.grouped_allreduce([np.full(3, rank), np.full(70_000, 2.0 * rank)], op=fd.Sum)
assert [set(array.tolist()) for array in pair] == [{sum(ranks)}, {2.0 * sum(ranks)}]
rows = fd.allgather(np.full((rank + 1, 2), rank))
assert rows.tolist() == [[r, r] for r in ranks for _ in range(r + 1)]
for root in (0, size - 1):
    sent = fd.broadcast(np.full(200_000, rank, "f4"), root_rank=root)
    assert set(sent.tolist()) == {root}
dealt, received = fd.alltoall(np.repeat(np.arange(size) + 10 * rank, [r + 1 for r in ranks]), [r + 1 for r in ranks])
assert dealt.tolist() == [rank + 10 * r for r in ranks for _ in range(rank + 1)]
part = fd.reducescatter(np.arange(2.0 * size), op=fd.Sum)
assert part.tolist() == [size * 2.0 * rank, size * (2.0 * rank + 1)]
late_first = [fd.allreduce_async(np.full(9, rank), name=f"{i}", op=fd.Sum) for i in (ranks if rank else reversed(ranks))]
assert all(set(fd.synchronize(handle).tolist()) == {sum(ranks)} for handle in late_first)

# One rank of each host, and the ranks of one.
for members in [[0, size - 1], list(range(size // 2))] if size > 2 else []:
    some = fd.add_process_set(members)
    if some.included():
        total = fd.allreduce(np.full(100_000, rank), op=fd.Sum, process_set=some)
        assert set(total.tolist()) == {sum(members)}
fd.barrier()
places = fd.allgather_object([socket.gethostname(), fd.local_rank(), fd.cross_rank()])
result(places)
"""


@pytest.mark.parametrize(
    ("per_host", "launcher", "options"),
    [
        (1, "mpiexec", ["-hosts", "alpha,beta", "-ppn", "1"]),
        (2, "mpiexec", ["-hosts", "alpha,beta", "-ppn", "2"]),
        (2, "farandole", ["--hosts", "alpha:2,beta:2"]),
    ],
)
def test_collectives(hosts: Network, per_host: int, launcher: str, options: list[str]) -> None:
    run = run_ranks(
        2 * per_host, SCRIPT, launcher=launcher, launcher_args=options, within=hosts.on_head, env=hosts.variables
    )
    expected = [[name, local, cross] for cross, name in enumerate(["alpha", "beta"]) for local in range(per_host)]
    assert run.results == [expected] * (2 * per_host)
