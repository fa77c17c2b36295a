"""Training on two hosts: the weights of one process with the whole batch, and each value once over the link."""

import sys
from pathlib import Path

import pytest

from hosts import Network, Traffic
from ranktest import run_ranks
from ranktest.job import Job, launch_command
from ranktest.processes import wait_until

HOSTS = {1: "alpha:1,beta:1", 2: "alpha:2,beta:2"}
VALUES_BYTES = 4 * (16 << 20)
# On the link there are also headers, acknowledgements, and which rank has which gradient.
MORE = 1.06

TRAIN = """
import torch
import farandole.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.manual_seed(0)

def build():
    return torch.nn.Sequential(torch.nn.Linear(700, 1200), torch.nn.Tanh(), torch.nn.Linear(1200, 3)).double()

model, plain = build(), build()
hvd.broadcast_parameters(model.state_dict(), root_rank=size - 1)
plain.load_state_dict(model.state_dict())
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
data = torch.Generator().manual_seed(1)
for _ in range(5):
    batch = torch.randn(6 * size, 700, generator=data, dtype=torch.float64)
    for part, network, chosen in ((batch[rank::size], model, optimizer), (batch, plain, reference)):
        chosen.zero_grad()
        network(part).square().mean().backward()
        chosen.step()
apart = max((a - b).abs().max().item() for a, b in zip(model.parameters(), plain.parameters()))
moved = max((a - b).abs().max().item() for a, b in zip(plain.parameters(), build().parameters()))
result({"apart": apart, "moved": moved, "differ": hvd.check_buffers_match([p.data for p in model.parameters()])})
"""

# Several steps after the first, in which the ranks also agree on a plan, then as many allreduces.
REDUCE = """
import pathlib, sys, time
import torch
import farandole.torch as hvd

folder, compression = pathlib.Path(sys.argv[1]), getattr(hvd.Compression, sys.argv[2])

def let_count(what):
    hvd.barrier()
    (folder / f"{what}.{hvd.rank()}").touch()
    while not (folder / f"{what}.counted").exists():
        time.sleep(0.01)

hvd.init()
model = torch.nn.Linear(4096, 1024, bias=False)  # 16 MiB
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=compression
)
array = torch.ones(4 << 20)

def step():
    optimizer.zero_grad()
    model(torch.ones(1, 4096)).sum().backward()
    optimizer.step()

step()
let_count("start")
for _ in range(4):
    step()
let_count("steps")
for _ in range(4):
    hvd.allreduce(array, name="array", compression=compression)
let_count("allreduces")
"""


def test_training_is_that_of_one_process(hosts: Network) -> None:
    options = ["--hosts", HOSTS[2]]
    run = run_ranks(
        4, TRAIN, launcher="farandole", launcher_args=options, within=hosts.on_head, env=hosts.variables
    )
    for told in run.results:
        assert told["differ"] == 0
        assert told["moved"] > 1e-3, "nothing was trained"
        # float64: the mean of the ranks' means adds the same numbers in another order.
        assert told["apart"] < 1e-12


@pytest.mark.more
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("per_host", "compression", "width"), [pytest.param(1, "none", 4, marks=pytest.mark.soak), (2, "fp16", 2)])
def test_each_value_crosses_the_link_once(
    hosts: Network, tmp_path: Path, per_host: int, compression: str, width: int
) -> None:
    """Of two hosts, each sends half of its sums and half of the results: a gradient's size each way, in all."""
    (tmp_path / "reduce.py").write_text(REDUCE)
    words = [sys.executable, "reduce.py", str(tmp_path), compression]
    command = [*launch_command("farandole", 2 * per_host, ["--hosts", HOSTS[per_host]]), *words]
    counted: dict[str, Traffic] = {}
    with Job(
        hosts.on_head(command), launcher="farandole", workdir=tmp_path, cwd=tmp_path, env=hosts.variables
    ) as job:
        for what in ("start", "steps", "allreduces"):
            signs = [tmp_path / f"{what}.{rank}" for rank in range(2 * per_host)]
            here = wait_until(lambda signs=signs: all(s.exists() for s in signs) or job.returncode is not None, 150)
            assert here and job.returncode is None, job.output()
            counted[what] = hosts.traffic("beta")
            (tmp_path / f"{what}.counted").touch()
        assert job.wait(30) and job.returncode == 0, job.output()
    bytes_each_way = VALUES_BYTES * width / 4
    for what, before in (("steps", "start"), ("allreduces", "steps")):
        crossed = counted[what] - counted[before]
        assert bytes_each_way <= crossed.sent < MORE * bytes_each_way, what
        assert bytes_each_way <= crossed.received < MORE * bytes_each_way, what
