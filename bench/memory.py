"""What a run was expected to take of memory, and what it took: every workload with tables on every framework at its presets.

Each is one `farandole run` of two epochs with a few steps: the allocator takes more in the second. The first of a
preset reads text, the others what that one has left in the cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.launching import run
from bench.rows import Row, foretold, table
from farandole.data.make import make
from farandole.train.rank.cgroup import available_bytes
from farandole.train.settings import FRAMEWORKS
from farandole.workloads.finding import find_workload, tables_of, workload_names

__all__ = ["measure"]

WITHIN = 1.5
_PAPER_BYTES = 16 << 30
"""What the largest of that preset takes, and half as much again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    workload: str
    preset: str
    framework: str
    ranks: int

    @property
    def what(self) -> str:
        return f"{self.workload} {self.preset}, {self.framework}, {self.ranks} rank{'s' * (self.ranks > 1)}"

    @property
    def amounts(self) -> dict[str, int]:
        few = 1 if self.preset == "paper" else 2
        return {"epochs": 2 * self.ranks, "train-steps": few + 1, "val-steps": few, "test-steps": few}


def measure(*, quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        return [_measured(one, Path(folder)) for one in _runs(quick)]


def _runs(quick: bool) -> Iterator[_Run]:
    """At their presets on one rank; on two, which hold gradients together, as well."""
    presets = ["test", "demo"]
    if quick:
        presets = ["demo"]
    elif available_bytes() < _PAPER_BYTES:
        print(f"memory: without the preset paper, which takes up to {_PAPER_BYTES / 2**30:.0f} GiB", file=sys.stderr)
    else:
        presets.append("paper")
    for preset in presets:
        for name in [name for name in workload_names() if find_workload(name).files]:
            for ranks in (1, 2) if preset == "demo" and not quick else (1,):
                yield from (_Run(workload=name, preset=preset, framework=one, ranks=ranks) for one in FRAMEWORKS)


def _measured(one: _Run, folder: Path) -> Row:
    data, out = folder / f"{one.workload}-{one.preset}", folder / "out"
    if not data.exists():
        make(tables_of(one.workload), data, preset=one.preset)
    given = {"preset": one.preset, "framework": one.framework, "data-dir": data, "output-dir": out} | one.amounts
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    run([sys.executable, "-m", "farandole", "run", one.workload, "-n", str(one.ranks), *options])
    found = json.loads((out / "run.json").read_text())["memory"]
    what = f"{one.what}: most to {found['estimated_phase']}"
    row = foretold(what, max(found["peak_bytes"]), found["estimated_bytes_a_rank"], within=WITHIN)
    print(table([row]), file=sys.stderr, flush=True)
    return row
