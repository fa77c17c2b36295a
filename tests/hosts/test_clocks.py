"""A timeline of hosts whose clocks differ: what ranks did together is shown at the same time."""

import json
from collections.abc import Callable
from pathlib import Path

from farandole.observe.analysis import analyse
from hosts import Network
from ranktest import run_ranks

AHEAD_S = 5000
SUMS = 20
# Half of a round trip between hosts, with room for a busy machine.
APART_US = 1_000.0
SHORT_US = 100_000.0
SCRIPT = f"""
import numpy as np
import farandole as fd

fd.init()
for number in range({SUMS}):
    fd.allreduce(np.ones(10), name=f"sum.{{number}}")
"""


def test_what_hosts_with_different_clocks_did_together_lines_up(
    make_hosts: Callable[..., Network], tmp_path: Path
) -> None:
    hosts = make_hosts(rate="2gbit", clocks={"beta": AHEAD_S})
    trace = tmp_path / "trace.json"
    options = ["--hosts", "alpha:2,beta:2", "--timeline", str(trace)]
    run_ranks(4, SCRIPT, launcher="farandole", launcher_args=options, within=hosts.on_head, env=hosts.variables)
    together = list(zip(*(sums_of(rank, trace) for rank in range(4)), strict=True))
    assert len(together) == SUMS
    # Nobody has a sum before everybody has begun to add: by as much as that is violated the clocks are apart.
    windows_us = [min(end for _, end in spans) - max(start for start, _ in spans) for spans in together]
    assert min(windows_us) > -APART_US
    assert min(windows_us) < SHORT_US, "sums so slow that clocks a long way apart would not show"
    found = analyse(trace)
    assert 0 < found["residual_s"] < APART_US * 1e-6 and found["clock"].endswith("at the begin and at the end")


def sums_of(rank: int, trace: Path) -> list[tuple[float, float]]:
    """When each of a rank's allreduces began and ended, in microseconds."""
    events = json.loads(trace.read_text())
    sums = [e for e in events if e.get("name") == "ALLREDUCE" and e["pid"] == rank]
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in sums)
