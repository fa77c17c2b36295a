"""Ranks that a real Slurm starts: who they are, what they compute, and how they end."""

import pytest

from slurmtest import Cluster

WHO_AND_WHERE = """
    import os
    import numpy as np
    import farandole as fd

    fd.init()
    rank, size = fd.rank(), fd.size()
    for count in (3, 300_001):  # one that is reduced flat, one in slices
        assert (fd.allreduce(np.full(count, rank + 1.0), op=fd.Sum) == size * (size + 1) / 2).all()
    assert fd.allgather(np.full(rank, rank)).tolist() == [r for r in range(size) for _ in range(r)]
    assert fd.alltoall(np.arange(size) + 10 * rank).tolist() == [rank + 10 * r for r in range(size)]
    assert fd.broadcast_object({"from": rank}, root_rank=size - 1) == {"from": size - 1}
    node = os.environ["SLURMD_NODENAME"]
    result([node, fd.local_rank(), fd.local_size(), fd.cross_rank(), fd.cross_size()])
"""

TRAINING = """
    import torch
    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    inputs = torch.randn(5, 8 * hvd.size(), 20)

    def losses(distribute, part):
        torch.manual_seed(2 + (hvd.rank() if distribute else 0))
        model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if distribute:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        found = []
        for batch in inputs[:, part]:
            optimizer.zero_grad()
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    mine = losses(True, slice(hvd.rank(), None, hvd.size()))
    together = hvd.allreduce(torch.tensor(mine)).tolist()
    result({"together": together, "alone": losses(False, slice(None))})
"""

ONE_RANK_FAILS = """
    import os, signal, sys
    import numpy as np
    import farandole as fd

    fd.init()
    fd.allreduce(np.ones(3))
    if fd.rank() == 1:
        {how}
    while True:
        fd.allreduce(np.ones(100_000))
"""
ONE_NODE_DIES = """
    import os, signal, sys
    import numpy as np
    import farandole as fd

    fd.init()
    fd.allreduce(np.ones(3))
    if fd.rank() == {victim}:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            fd.allreduce(np.ones(100_000), name="loss")
    except RuntimeError as error:
        result(str(error))  # srun may end before it has shown what the ranks print
        raise
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
RAISED = "raise ValueError('a bad batch')"
SOON_S = 30.0
"""With the time that Slurm takes to begin; ranks that nobody ends go on for ever."""


@pytest.mark.parametrize(
    ("ranks", "distribution", "nodes"),
    [
        (2, "block", ["n1", "n2"]),
        (4, "block", ["n1", "n1", "n2", "n2"]),
        (4, "cyclic", ["n1", "n2", "n1", "n2"]),
    ],
)
def test_every_rank_knows_its_node_and_the_collectives_cross_it(
    slurm: Cluster, ranks: int, distribution: str, nodes: list[str]
) -> None:
    run = slurm.srun(ranks, WHO_AND_WHERE, f"--distribution={distribution}", timeout=90)
    local_ranks = [nodes[:rank].count(node) for rank, node in enumerate(nodes)]
    assert run.results == [
        [node, local_rank, ranks // 2, ["n1", "n2"].index(node), 2]
        for node, local_rank in zip(nodes, local_ranks)
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_training_on_two_nodes_is_training_on_one(slurm: Cluster, ranks: int) -> None:
    for found in slurm.srun(ranks, TRAINING).results:
        # The mean of the ranks' means is summed in another order than the mean of all.
        assert found["together"] == pytest.approx(found["alone"], rel=1e-5)
        assert found["together"][-1] < found["together"][0]


def test_a_world_for_each_rank_is_an_error_that_names_the_option(slurm: Cluster) -> None:
    script = "import farandole; farandole.init(); print('training')"
    run = slurm.srun(2, script, mpi="none", timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < SOON_S
    assert "SLURM_STEP_NUM_TASKS=2 ranks were started, but MPI sees only 1" in run.stderr
    assert "srun --mpi=pmi2" in run.stderr
    assert "training" not in run.stdout


def test_a_forgotten_srun_is_an_error_that_names_it(slurm: Cluster) -> None:
    run = slurm.alone(2, "import farandole; farandole.init(); print('training')", timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < SOON_S
    assert "SLURM_NTASKS=2 ranks were started, but MPI sees only 1" in run.stderr
    assert "Start the ranks with `srun --mpi=pmi2`" in run.stderr
    assert "training" not in run.stdout


@pytest.mark.parametrize(
    ("ranks", "how", "said"),
    [
        (4, KILLED, ["task 1: Killed", "rank 1 (process"]),
        (4, RAISED, ["ValueError: a bad batch"]),
        (2, RAISED, ["ValueError: a bad batch"]),
    ],
)
def test_a_rank_that_fails_ends_the_ranks_of_both_nodes(
    slurm: Cluster, ranks: int, how: str, said: list[str]
) -> None:
    run = slurm.srun(ranks, ONE_RANK_FAILS.format(how=how), timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < SOON_S
    assert not [words for words in said if words not in run.stderr], run.stderr


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_that_was_alone_on_its_node_ends_the_other_node(slurm: Cluster, victim: int) -> None:
    run = slurm.srun(2, ONE_NODE_DIES.format(victim=victim), timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < SOON_S
    other = 1 - victim
    assert run.by_rank[other] == f"[rank {other}/2] allreduce.loss: rank {victim}, on another node, has died"


def test_with_kill_on_bad_exit_a_node_s_only_rank_ends_the_other_node(slurm: Cluster) -> None:
    script = ONE_RANK_FAILS.format(how=KILLED)
    run = slurm.srun(2, script, "--kill-on-bad-exit=1", timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < SOON_S
    assert "n2: task 1: Killed" in run.stderr


def test_launch_takes_the_nodes_of_its_allocation(slurm: Cluster) -> None:
    nodes = [node for node, *_ in slurm.launch(4, WHO_AND_WHERE, timeout=90).results]
    assert nodes == ["n1", "n1", "n2", "n2"]


def test_launch_in_an_allocation_names_the_rank_that_was_killed(slurm: Cluster) -> None:
    run = slurm.launch(4, ONE_RANK_FAILS.format(how=KILLED), timeout=90, expect=None)
    assert run.returncode == 137 and run.seconds < SOON_S
    assert "farandole: rank 1 failed: killed by SIGKILL" in run.stderr
    assert "--hosts n1:2,n2:2" in run.stderr
