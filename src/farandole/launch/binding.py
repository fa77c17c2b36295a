"""Which cores a rank is bound to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["cores_for"]

_SYSTEM = Path("/sys/devices/system")


def cores_for(bind: str, local_rank: int, local_size: int, threads: int) -> set[int]:
    """The cores of one of a host's ranks; empty means any."""
    usable = sorted(os.sched_getaffinity(0))
    if bind == "core":
        return share_of_cores(by_place(usable), local_rank, threads)
    if bind == "node":
        return share_of_nodes(numa_nodes(usable), local_rank, local_size)
    return set()


def share_of_cores(cores: Sequence[int], local_rank: int, threads: int) -> set[int]:
    """`threads` neighbouring cores a rank; with more ranks than cores they start over."""
    first = local_rank * threads
    return {cores[(first + offset) % len(cores)] for offset in range(threads)}


def share_of_nodes(nodes: Sequence[set[int]], local_rank: int, local_size: int) -> set[int]:
    """Ranks fill the NUMA nodes in blocks: neighbouring ranks share one."""
    return set(nodes[local_rank * len(nodes) // local_size]) if nodes else set()


def by_place(cores: Sequence[int]) -> list[int]:
    """Cores ordered so that hardware threads of one core, and cores of one socket, are neighbours."""
    return sorted(
        cores, key=lambda core: (_topology(core, "physical_package_id"), _topology(core, "core_id"), core)
    )


def numa_nodes(cores: Sequence[int]) -> list[set[int]]:
    """The given cores by NUMA node, without the nodes that have none of them."""
    allowed = set(cores)
    nodes = [_core_list(text) & allowed for text in _node_texts()]
    return [node for node in nodes if node]


def _node_texts() -> list[str]:
    found = [path for path in _SYSTEM.glob("node/node*") if path.name[4:].isdigit()]
    return [_read(path / "cpulist") for path in sorted(found, key=lambda path: int(path.name[4:]))]


def _core_list(text: str) -> set[int]:
    """The kernel's notation: `0-3,8`."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _topology(core: int, name: str) -> int:
    text = _read(_SYSTEM / f"cpu/cpu{core}/topology/{name}").strip()
    return int(text) if text.lstrip("-").isdigit() else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
