"""A host that is cut off in the middle of a step: every rank ends, on both sides, and the host is named."""

import contextlib
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from hosts import Network
from ranktest.job import Job, launch_command
from ranktest.processes import tagged, wait_until

SILENCE_S = 9
LIMIT_S = SILENCE_S + 15.0

SCRIPT = """
import pathlib, sys
import torch
import farandole.torch as hvd

hvd.init()
model = torch.nn.Linear(2048, 2048)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(1_000_000):
    optimizer.zero_grad()
    model(torch.ones(1, 2048)).sum().backward()
    optimizer.step()
    print(f"step {step}", flush=True)  # so that words to the launcher are under way as well
    if step == 3:
        pathlib.Path(f"trains.{hvd.rank()}").touch()
"""


@pytest.mark.more  # eight ranks of torch, which train until it is noticed
@pytest.mark.timeout(400)
def test_a_host_that_is_cut_off_is_named_and_every_rank_ends(
    make_hosts: Callable[..., Network], tmp_path: Path
) -> None:
    """Either of the hosts, each in a network of its own, at the same time: it takes a while."""
    lost = {"alpha": "ranks 0, 1", "beta": "ranks 2, 3"}
    with ExitStack() as jobs:
        networks = {cut: make_hosts(rate="2gbit") for cut in lost}
        running = {cut: jobs.enter_context(_training_job(networks[cut], tmp_path / cut)) for cut in lost}
        for cut, job in running.items():
            assert wait_until(lambda cut=cut: len(list((tmp_path / cut).glob("trains.*"))) == 4, 150), job.output()
            networks[cut].cut(cut)
        end_s = time.monotonic() + LIMIT_S
        for cut, job in running.items():
            assert job.wait(end_s - time.monotonic()), f"the launcher did not end{job.output()}"
            # The ranks on the host that is cut off hear nothing of it and have to see for themselves.
            assert wait_until(lambda job=job: not _ranks(job), end_s - time.monotonic()), f"ranks are left: {_ranks(job)}"
            assert job.returncode == 1
            assert f"host {cut} ({lost[cut]}) has not answered for {SILENCE_S} s" in job.stderr
        for cut, job in running.items():
            # mpiexec's own helper there can only learn of the end when it is reached again.
            networks[cut].mend(cut)
            assert not job.leftovers(15.0)
            assert not [name for host in lost for name in networks[cut].shared_memory(host)]


def _training_job(hosts: Network, folder: Path) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    command = [*launch_command("farandole", 4, ["--hosts", "alpha:2,beta:2"]), sys.executable, "train.py"]
    env = {**hosts.variables, "FARANDOLE_HOST_SILENCE_SECONDS": str(SILENCE_S)}
    return Job(hosts.on_head(command), launcher="farandole", workdir=folder, cwd=folder, env=env)


def _ranks(job: Job) -> list[str]:
    """The ranks that still run."""
    found = []
    for pid in tagged(job.tag):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(bytes(1))
            found += [f"{pid}"] * (b"train.py" in words and b"launch" not in words)
    return found
