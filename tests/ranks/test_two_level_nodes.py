"""Several nodes on one machine: FARANDOLE_NODE tells ranks apart that could share memory."""

from __future__ import annotations

import pytest

from ranktest import run_ranks

SCRIPT = """
import os
nodes = os.environ["NODES_OF_RANKS"].split(",")
os.environ["FARANDOLE_NODE"] = nodes[rank_number()]
import numpy as np
import torch
import farandole as fd
import farandole.torch as hvd

hvd.init()
rank, size = fd.rank(), fd.size()
for dtype in ("float32", "float64", "int32", "float16"):
    for count in (1, 1000, 300_001):
        pattern = np.arange(count) % 5
        mine = (pattern + rank).astype(dtype)
        total = fd.allreduce(mine, op=fd.Sum)
        assert np.array_equal(total.astype("f8"), size * pattern + size * (size - 1) / 2), (dtype, count)
        assert np.array_equal(fd.allreduce(mine, op=fd.Max).astype("f8"), pattern + size - 1), (dtype, count)
for count in (1000, 700_001):  # with array operations; compiled
    # Neither the sum of a node nor that of all ranks is a float16.
    assert (fd.allreduce(np.full(count, 4e4, "float16"), op=fd.Average) == 4e4).all()
    # Nor are they uint8; and an average is cut once, not on each node.
    assert (fd.allreduce(np.full(count, 201 if rank else 200, "uint8"), op=fd.Average) == 200).all()
    assert (fd.allreduce(np.full(count, -3.0, "float16"), op=fd.Product, postscale_factor=2.0) == 2 * (-3.0) ** size).all()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(700, 500), torch.nn.Linear(500, 10))
plain = torch.nn.Sequential(torch.nn.Linear(700, 500), torch.nn.Linear(500, 10))
plain.load_state_dict(model.state_dict())
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
data = torch.Generator().manual_seed(1)
for _ in range(4):
    x = torch.randn(4 * size, 700, generator=data)
    optimizer.zero_grad()
    model(x[4 * rank : 4 * rank + 4]).square().mean().backward()
    optimizer.step()
    reference.zero_grad()
    plain(x).square().mean().backward()
    reference.step()
apart = max((a - b).abs().max().item() for a, b in zip(model.parameters(), plain.parameters()))
result({
    "place": [fd.local_rank(), fd.local_size(), fd.cross_rank(), fd.cross_size(), fd.is_homogeneous()],
    "nodes": fd.describe()["nodes"],
    "differ": hvd.check_buffers_match([p.data for p in model.parameters()]),
    "apart": apart,
    "plan": [hvd.describe()["plans"][-1][name] for name in ("collective", "bytes_per_step", "messages_per_step")],
})
"""


GROWING = """
import os
os.environ["FARANDOLE_NODE"] = "aab"[rank_number()]
import numpy as np
import farandole as fd

fd.init()
for count in (300_000, 5_000_000):  # more than the window has room for at first
    assert (fd.allreduce(np.ones(count, "f4"), op=fd.Sum) == 3).all()
"""


def test_a_window_grows_where_one_node_needs_none() -> None:
    run_ranks(3, GROWING, env={"FARANDOLE_NODE_EXCHANGE": "window"}, timeout=60)


@pytest.mark.parametrize(
    ("nodes", "places", "algorithm"),
    [
        ("a,b,a", [[0, 2, 0, 2, False], [0, 1, 1, 2, False], [1, 2, 0, 1, False]], "*=mpi"),
        # Two nodes of two are also in tests/hosts, with a network between them.
        pytest.param(
            "a,a,b,b", [[0, 2, 0, 2, True], [1, 2, 0, 2, True], [0, 2, 1, 2, True], [1, 2, 1, 2, True]],
            "65536=exchange,*=scatter", marks=pytest.mark.soak,
        ),
        pytest.param("a,b,c", [[0, 1, 0, 3, True], [0, 1, 1, 3, True], [0, 1, 2, 3, True]], "*=scatter", marks=pytest.mark.soak),
    ],
)
def test_ranks_on_several_nodes_reduce_and_train_as_one_process(
    nodes: str, places: list[list[int]], algorithm: str
) -> None:
    env = {"NODES_OF_RANKS": nodes, "FARANDOLE_CROSS_ALGORITHMS": algorithm}
    results = run_ranks(len(places), SCRIPT, env=env, timeout=120).results
    assert [r["place"] for r in results] == places
    assert all(r["differ"] == 0 for r in results)
    collective, nbytes, messages = results[0]["plan"]
    between = algorithm.rpartition("=")[2]
    assert collective == (between if len(set(nodes.split(","))) == len(places) else f"two-level: sliced direct, {between}")
    row = len(places) + len(("weight", "bias") * 2)  # the ranks' states, and which gradients exist
    assert nbytes == 4 * (700 * 500 + 500 + 500 * 10 + 10) + row and messages == 3, "the large gradient, a bucket, the row"
    assert all(r["plan"] == results[0]["plan"] for r in results)
    # Gradients of parts of the batch are averaged instead of one of the whole: float32 rounding, 4 steps.
    assert all(r["apart"] < 1e-6 for r in results)
