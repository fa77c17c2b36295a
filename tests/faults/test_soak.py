"""A hundred jobs of each kind of failure, on one host and on two: each ends, names the right rank, and leaves nothing."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hosts import Network, lacking
from ranktest import run_ranks

RUNS = 100
AT_A_TIME = 3
LIMIT_S = 10.0
"""From the failure to the end of the job, three of them at a time; a hang is one after STALL_S."""
STALL_S = 3.0

# kind: (what the rank does, what the launcher says of it)
KINDS = {
    "killed": ("os.kill(os.getpid(), 9)", r"rank {rank} failed: killed by SIGKILL"),
    "raising": ("raise ValueError('batch 7 is empty')", r"rank {rank} failed: exit code 1\n.*(?s:.*)batch 7 is empty"),
    "exiting": ("os._exit(0)", r"rank {rank} failed: exited without"),
    "hanging": ("time.sleep(600)", r"missing: .*rank {rank} \("),
}

PRELUDE = """
import os, sys, time
import numpy as np
import farandole as fd

victim, where = int(sys.argv[1]), sys.argv[2]
def fail_here(place):
    if fd.rank() == victim and place == where:
        result(time.monotonic())
        {deed}

fd.init()
fail_here("after init")
"""

# Gradients through the engine alone: a rank that imports no framework starts in a fifth of the time.
PLAIN = PRELUDE + """
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.opening import make_plan
from farandole.comm.named.process_sets import global_process_set
from farandole.comm.gradients.team import Team

# One that is packed, one whose result is in the node's window. For floats of that size a rank imports numba, as torch's do.
gradients = [np.ones(500, np.int32), np.ones(500 * 1300, np.int32)]
entries = [Entry(str(index), "int32", array.shape) for index, array in enumerate(gradients)]
how = Reduction("sum")
plan = make_plan(global_process_set.runtime(), "soak", entries, PlanSettings(how=how, team=Team()))
for step in range(400):
    if step == 2:
        fail_here("in a step")
    plan.buffer(0)[:] = gradients[0]
    plan.ready(0, None)
    plan.ready(1, gradients[1])
    if step == 4:
        fail_here("after backward")
    plan.finish()
    if step == 5:
        fail_here("between steps")
    fd.allreduce(np.ones(3), name="loss")
    time.sleep(0.01)
"""

# torch first, as in users' scripts: its import is no part of the time within which a job ends.
TORCH = "import torch\n" + PRELUDE + """
import farandole.torch as hvd

model = torch.nn.Sequential(torch.nn.Linear(1300, 500), torch.nn.Linear(500, 10))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(400):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 1300)).square().mean()
    if step == 2:
        fail_here("in a step")
    loss.backward()
    if step == 4:
        fail_here("after backward")
    optimizer.step()
    if step == 5:
        fail_here("between steps")
    hvd.allreduce(loss.detach(), name="loss")
    time.sleep(0.01)
"""
TORCH_RUNS = 3
"""Of each hundred: a rank that imports torch takes ten times the processor time of another."""
PLACES = ["after init", "in a step", "after backward", "between steps"]


@pytest.fixture
def two_hosts():
    if lacking():
        pytest.skip(lacking())
    with Network(["alpha", "beta"]) as network:
        yield network


def check(kind: str, script: str, draw: random.Random, network: Network | None) -> None:
    ranks = draw.choice([2, 3, 4]) if network is None else 4
    victim, place = draw.randrange(ranks), draw.choice(PLACES)
    told = f"{kind} rank {victim} of {ranks}, {place}, {'torch' if script is TORCH else 'plain'}"
    deed, words = KINDS[kind]
    options = ["--stall-warning", "1", "--stall-abort", f"{STALL_S}"] if kind == "hanging" else []
    where = {} if network is None else {"within": network.on_head, "env": network.variables}
    if network is not None:
        options += ["--hosts", "alpha:2,beta:2"]
    started = time.monotonic()
    done = run_ranks(
        ranks, script.format(deed=deed), launcher="farandole", launcher_args=options, args=[str(victim), place],
        timeout=60, expect=None, **where,
    )  # fmt: skip
    assert done.returncode != 0, f"{told}\n{done.stderr}"
    seconds = started + done.seconds - done.by_rank[victim]
    assert seconds < LIMIT_S + STALL_S * (kind == "hanging"), f"{told}: {seconds:.1f} s\n{done.stderr}"
    assert re.search(words.format(rank=victim), done.stderr), f"{told}\n{done.stderr}"


def repeat(kind: str, network: Network | None) -> None:
    seed = random.randrange(10**6)
    print(f"{kind}: seed {seed}")

    def one(run: int) -> None:
        check(kind, TORCH if run < TORCH_RUNS else PLAIN, random.Random(seed + run), network)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(one, range(RUNS)))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_on_one_host(kind: str) -> None:
    repeat(kind, None)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_on_two_hosts(kind: str, two_hosts: Network) -> None:
    repeat(kind, two_hosts)
    assert not [name for host in ("alpha", "beta") for name in two_hosts.shared_memory(host)]
