"""Which algorithm reduces an array of which size: a table, shipped and settable, never measured.

The choice depends on the size and the layout of ranks alone, so that a run repeats bit for bit.

Within a node: `flat` (every rank combines all of the array: one wait less) or `sliced` (each rank
combines its slice and reads the others'). The result of a gradient goes to its own `place` (which is still in
the rank's cache) or to a `window` that the node's ranks share (no rank copies what another has made). Between
nodes: `exchange` (every node sends its part to all), `scatter` (each node combines its share, then sends the
result to all) or `mpi` (the library's own).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from farandole.errors import SettingsError

__all__ = ["AlgorithmTable"]

_NODE = ("flat", "sliced")
_RESULT = ("place", "window")
_CROSS = ("exchange", "scatter", "mpi")
_KIB = 1024


@dataclass(kw_only=True, slots=True)
class AlgorithmTable:
    """Rows are (up to this many bytes, algorithm), in rising order; the last row takes the rest."""

    node: tuple[tuple[float, str], ...] = ((64 * _KIB, "flat"), (float("inf"), "sliced"))
    """Within a node."""
    result: tuple[tuple[float, str], ...] = ((2 * _KIB * _KIB, "place"), (float("inf"), "window"))
    """Where a gradient's result goes within a node."""
    many_neighbours: int = 3
    """From this many ranks a node on, results go to the window: reading them back from each takes longer."""
    cross: tuple[tuple[float, str], ...] = ((64 * _KIB, "exchange"), (float("inf"), "scatter"))
    """Between nodes; sizes are those of the part one rank carries."""
    many_nodes: int = 16
    """Above this many nodes the parts go through MPI's own reduction where it knows the type."""

    def __post_init__(self) -> None:
        _check("node", self.node, _NODE)
        _check("result", self.result, _RESULT)
        _check("cross", self.cross, _CROSS)

    def for_node(self, nbytes: int) -> str:
        return next(name for limit, name in self.node if nbytes <= limit)

    def for_result(self, nbytes: int, neighbours: int) -> str:
        if neighbours >= self.many_neighbours:
            return "window"
        return next(name for limit, name in self.result if nbytes <= limit)

    def for_cross(self, nbytes: int, nodes: int) -> str:
        return "mpi" if nodes > self.many_nodes else next(n for limit, n in self.cross if nbytes <= limit)

    @classmethod
    def from_environment(cls) -> AlgorithmTable:
        """FARANDOLE_NODE_ALGORITHMS (_RESULT_, _CROSS_), e.g. `65536=flat,*=sliced`."""
        rows: dict[str, Any] = {}
        for field in ("node", "result", "cross"):
            text = os.environ.get(f"FARANDOLE_{field.upper()}_ALGORITHMS")
            if text:
                rows[field] = _parse(field, text)
        if "result" in rows:
            rows["many_neighbours"] = sys.maxsize
        return cls(**rows)


def _check(where: str, rows: tuple[tuple[float, str], ...], known: tuple[str, ...]) -> None:
    for _, name in rows:
        if name not in known:
            raise SettingsError(f"unknown {where} algorithm {name!r}; known: {', '.join(known)}")
    limits = [limit for limit, _ in rows]
    if limits != sorted(limits) or not limits or limits[-1] != float("inf"):
        raise SettingsError(f"{where} algorithms {rows}: sizes must rise and the last one be `*`")


def _parse(where: str, text: str) -> tuple[tuple[float, str], ...]:
    try:
        pairs = [row.split("=") for row in text.split(",")]
        return tuple((float("inf") if limit == "*" else float(limit), name) for limit, name in pairs)
    except ValueError:
        example = "65536=flat,*=sliced"
        raise SettingsError(
            f"FARANDOLE_{where.upper()}_ALGORITHMS={text!r}: write bytes=name pairs, e.g. {example}"
        ) from None
