"""Ranks that measure: `farandole launch -n 2 -- python -m farandole.study.comm.on_ranks SETTINGS OUT`."""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import farandole
from farandole.comm.bytes import mpi
from farandole.comm.world import current
from farandole.observe.environment import environment
from farandole.study.comm.results import KIND, SCHEMA, figures, fits, write
from farandole.study.comm.scopes import known_cuts, scopes
from farandole.study.comm.settings import CommSettings, size_text
from farandole.study.comm.turns import take_turns
from farandole.study.comm.ways import DTYPE, Group, elements, ways

__all__ = ["measure"]

Row = dict[str, Any]


def measure(settings: CommSettings) -> Row:
    """The results, on every rank. Collective: every rank calls it, initialised and not alone."""
    began = datetime.datetime.now(datetime.UTC)
    found = _machine()
    chosen = scopes(current().layout.nodes)
    progress = _Progress(len(chosen) * len(settings.sizes) * len(settings.collectives))
    measured = [_scope(name, ranks, settings, progress) for name, ranks in chosen.items()]
    took_s = (datetime.datetime.now(datetime.UTC) - began).total_seconds()
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "started": began.isoformat(timespec="seconds"),
        "took_s": round(took_s, 1),
        **found,
        "settings": asdict(settings) | {"dtype": DTYPE.name},
        "scopes": measured,
    }


def _scope(name: str, ranks: list[int], settings: CommSettings, progress: _Progress) -> Row:
    everyone = len(ranks) == farandole.size()
    process_set = farandole.global_process_set if everyone else farandole.add_process_set(ranks)
    group = Group(process_set=process_set, comm=mpi.plain(ranks)) if farandole.rank() in ranks else None
    rows: list[Row] = []
    for collective, nbytes in product(settings.collectives, settings.sizes):
        mine = [] if group is None else _rows(collective, nbytes, group, settings.seconds)
        # Met after every size, so that ranks which take no part are never waited for long.
        rows += farandole.allgather_object(mine, name="bench.rows")[ranks[0]]
        progress.step(f"{name}: {collective} of {size_text(nbytes)} on {len(ranks)} ranks")
    if group is not None:
        group.comm.Free()
    if not everyone:
        farandole.remove_process_set(process_set)
    nodes = [len(found) for node in current().layout.nodes if (found := set(ranks) & set(node))]
    return {
        "scope": name,
        "ranks": ranks,
        "nodes": len(nodes),
        "figures": rows,
        "fits": fits(rows, known_cuts(nodes)),
    }


def _rows(collective: str, nbytes: int, group: Group, seconds: float) -> list[Row]:
    count = elements(collective, nbytes, group.size)
    made = ways(collective, count, group)
    timings = take_turns(made, group, seconds)
    for way in made:
        way.close()
    whole = count * DTYPE.itemsize
    return [figures(collective, whole, group.size, name, timing) for name, timing in timings.items()]


def _machine() -> Row:
    """What is measured on."""
    told = farandole.describe()
    hosts = farandole.allgather_object(socket.gethostname(), name="bench.hosts")
    cores = farandole.allgather_object(os.sched_getaffinity(0), name="bench.cores")
    nodes = [
        # Ranks bound to cores of their own have all of these together.
        {"host": hosts[node[0]], "ranks": list(node), "cores": len(set().union(*(cores[rank] for rank in node)))}
        for node in current().layout.nodes
    ]
    return {
        "environment": environment(),
        "mpi": told.pop("mpi"),
        "engine": {name: value for name, value in told.items() if name not in ("rank", "size", "nodes")},
        "ranks": farandole.size(),
        "nodes": nodes,
        "oversubscribed": any(len(node["ranks"]) > node["cores"] for node in nodes),
    }


class _Progress:
    """A line for each size, on standard error of rank 0."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._began_s = time.monotonic()

    def step(self, what: str) -> None:
        self._done += 1
        if farandole.rank() == 0:
            left_s = (time.monotonic() - self._began_s) / self._done * (self._total - self._done)
            print(f"{self._done}/{self._total} {what}, {left_s:.0f} s left", file=sys.stderr, flush=True)


def main(settings: str, out: str) -> None:
    farandole.init()
    results = measure(CommSettings(**json.loads(settings)))
    if farandole.rank() == 0:
        write(results, Path(out))
    farandole.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
