"""Studies made by arithmetic on 1 to 8 nodes, with what the same machine would take on many more: how far predictions can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from farandole.results.reading import Study
from farandole.results.schema import SCHEMA, Result

__all__ = ["FITTED_NODES", "Machine", "made_up"]

FITTED_NODES = (1, 2, 3, 4, 6, 8)
_EPOCHS, _STEPS, _REPEATS, _BATCH = 4, 50, 3, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a step, and a run around it, take."""

    ranks_a_node: int
    collective: str
    """ring or tree"""
    compute_s: float
    within_s: float
    """Of an allreduce within a node."""
    latency_s: float
    """Of a message of all of a step's buckets."""
    bandwidth_s: float
    """Of all bytes of a step, once."""
    jitter: float
    """Of a step, over its time."""
    tail: str
    load_s: float
    contention: float
    """How much longer reading takes on twice the nodes."""
    broadcast_s: float
    start_s: float
    noise: float

    @classmethod
    def drawn(cls, random: Random) -> Machine:
        """Models of 1 to 250 million parameters, networks of 1 to 12 GB/s and 2 to 30 microseconds, a message every 8 MiB."""
        compute_s, sent = 10 ** random.uniform(-1.3, 0.3), 10 ** random.uniform(6.6, 9.0)
        messages, per_s = math.ceil(sent / 8e6), 10 ** random.uniform(9.0, 10.08)
        return cls(
            ranks_a_node=random.choice((1, 2, 4, 6)), collective=random.choice(("ring", "tree")), compute_s=compute_s,
            within_s=compute_s * 10 ** random.uniform(-2.3, -1), latency_s=messages * 10 ** random.uniform(-5.7, -4.5),
            bandwidth_s=sent / per_s, jitter=random.uniform(0.005, 0.04), tail=random.choice(("normal", "exponential")),
            load_s=compute_s * random.uniform(5, 80), contention=random.uniform(0.0, 0.25), broadcast_s=compute_s * random.uniform(0.2, 5),
            start_s=compute_s * random.uniform(2, 20), noise=random.uniform(0.005, 0.02),
        )  # fmt: skip

    def parts(self, nodes: int) -> dict[str, float]:
        """Seconds of a weak run without noise."""
        steps, ranks = _EPOCHS * _STEPS, nodes * self.ranks_a_node
        hops = 2 * (nodes - 1) if self.collective == "ring" else 2 * math.log2(nodes)
        within = self.within_s if self.ranks_a_node > 1 else 0.0
        allreduce = within + hops * self.latency_s + 2 * (nodes - 1) / nodes * self.bandwidth_s
        slowest = math.log(ranks) if self.tail == "exponential" else math.sqrt(2 * math.log(ranks))
        return {
            "compute": steps * self.compute_s, "allreduce": steps * allreduce, "straggler": steps * self.jitter * self.compute_s * slowest,
            "load": self.load_s * nodes**self.contention, "broadcast": self.broadcast_s * math.log2(2 * nodes), "start": self.start_s,
        }  # fmt: skip

    def total_s(self, nodes: int) -> float:
        return sum(self.parts(nodes).values())

    def run(self, nodes: int, random: Random) -> dict[str, float]:
        """Measured, with noise."""
        return {name: seconds * math.exp(random.gauss(0.0, self.noise)) for name, seconds in self.parts(nodes).items()}


def made_up(machine: Machine, random: Random, *, told: bool) -> Study:
    """`told`: whether runs have recorded their collective."""
    lines = [_line(machine, nodes, repeat, random, told=told) for nodes in FITTED_NODES for repeat in range(_REPEATS)]
    return Study(
        folder=Path("made-up"), kind="weak", title="made up", command=None, about={}, raw=lines, tries=len(lines),
        results=[Result.of(Path(), line) for line in lines],
    )  # fmt: skip


def _line(machine: Machine, nodes: int, repeat: int, random: Random, *, told: bool) -> dict[str, Any]:
    parts, ranks = machine.run(nodes, random), nodes * machine.ranks_a_node
    exposed_s = parts["allreduce"] + parts["straggler"]
    figures = {
        "total_s": sum(parts.values()), "train_s": parts["compute"] + exposed_s, "load_s": parts["load"], "broadcast_s": parts["broadcast"],
        "exposed_s": exposed_s, "wait_s": parts["straggler"], "data_stall_s": 0.0, "epochs": _EPOCHS,
        "samples": ranks * _BATCH * _STEPS * _EPOCHS, "global_batch": ranks * _BATCH, "local_batch": _BATCH,
        "collective": machine.collective if told else None,
    }  # fmt: skip
    settings = {"ranks": ranks, "nodes": nodes}
    return {
        "schema": SCHEMA, "study": "weak", "key": str(ranks), "settings": settings, "repeat": repeat, "status": "ok", "figures": figures,
        "marks": [], "reasons": {},
    }  # fmt: skip
