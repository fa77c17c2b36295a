"""The energy of a job: the first rank of each node measures, and each machine counts once."""

from pathlib import Path

import pytest

from powertree import Machine, steady
from ranktest import run_ranks

# Ranks 0 and 1 are one node and rank 2 another, of the same machine; rank 0 spends 10 J in 0.4 s.
SCRIPT = """
import os, sys, time
from pathlib import Path
os.environ["FARANDOLE_NODE"] = "ab"[rank_number() // 2]
import farandole as fd

def spend(counter, joules, seconds):
    began, share = time.monotonic(), 0.0
    while share < 1.0:
        share = min((time.monotonic() - began) / seconds, 1.0)
        if fd.rank() == 0:
            with open(counter, "r+") as file:
                file.write(f"{1_000_000_000 + round(joules * share * 1e6):010d}")
        time.sleep(0.002)

fd.init()
fd.barrier()
with fd.observe.energy("train") as used:
    spend(sys.argv[1], 10.0, 0.4)
job = fd.job_energy()
result({
    "local_rank": fd.local_rank(),
    "own": used.energy.total.as_dict(),
    "hosts": [node.host for node in job.nodes],
    "train_j": job.phases["train"].energy_j,
    "total": job.as_dict()["total"],
})
"""


def test_every_machine_counts_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    zone = machine.rapl("0", "package-0", steady(0.0), first_j=1_000.0)
    run = run_ranks(3, SCRIPT, timeout=60, args=[str(zone.path)], env={"FARANDOLE_POWER_ROOT": str(tmp_path)})
    assert [told["local_rank"] for told in run.results] == [0, 1, 0]
    assert [told["own"]["provenance"] for told in run.results] == ["measured-component", "none", "measured-component"]
    assert run.results[1]["own"]["reason"] == "measured by the first rank of this node"
    assert {told["total"]["window"] for told in run.results} == {"regions"}
    for told in run.results:
        assert told["hosts"] == ["a"], "both nodes have read the same counters"
        assert told["total"]["energy_j"] == told["train_j"] == pytest.approx(10.0, rel=0.2)
