"""The results as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.study.comm.settings import size_text
from farandole.study.comm.ways import GRADIENT, MPI, NAMED

__all__ = ["as_text"]

Row = dict[str, Any]

_SCOPES = {"node": "within a node", "across": "across nodes, one rank of each", "all": "on all ranks"}
_BUSY_SHARE = 0.25
_WAYS = {
    GRADIENT: "a gradient as DistributedOptimizer reduces it, not overlapped with anything",
    NAMED: "farandole.allreduce and the like: ranks agree first",
    MPI: "MPI's own blocking call into an array that is kept",
}


def as_text(results: Row) -> str:
    parts = [_head(results)]
    for scope in results["scopes"]:
        for collective in results["settings"]["collectives"]:
            rows = [row for row in scope["figures"] if row["collective"] == collective]
            pieces = [found for found in scope["fits"] if found["collective"] == collective]
            parts += [_figures(scope, collective, rows), _fits(pieces)]
    return "\n\n".join([*parts, _notes(results)])


def _head(results: Row) -> str:
    machine, mpi = results["environment"], results["mpi"]
    nodes = ", ".join(f"{len(node['ranks'])} on {node['cores']} cores of {node['host']}" for node in results["nodes"])
    lines = [
        f"{results['ranks']} ranks: {nodes}",
        f"{machine['cpu']}; {mpi['library']} {mpi['version']}",
    ]
    busy = machine["load_average"][0]
    if busy > _BUSY_SHARE * results["nodes"][0]["cores"]:
        lines.append(
            f"warning: the machine was busy before (load average {busy}): times are longer and apart"
        )
    if results["oversubscribed"]:
        lines.append(
            "warning: there are more ranks than cores: MPI's calls spin, and times are those of taking turns"
        )
    return "\n".join(lines + [f"warning: {reason}" for reason in results["engine"].get("fallbacks", [])])


def _figures(scope: Row, collective: str, rows: Sequence[Row]) -> str:
    lines = [["size", "way", "median us", "min us", "p95 us", "MB/s", "bus MB/s", "x MPI"]]
    mpi_s = {row["bytes"]: row["median_s"] for row in rows if row["way"] == MPI}
    last = None
    for row in rows:
        size = "" if row["bytes"] == last else size_text(row["bytes"])
        last = row["bytes"]
        seconds = [_us(row[name]) for name in ("median_s", "min_s", "p95_s")]
        rates = [_rate(row[name]) for name in ("algorithm_bytes_per_s", "bus_bytes_per_s")]
        gain = "" if row["way"] == MPI else f"{mpi_s[row['bytes']] / row['median_s']:.2f}"
        lines.append([size, row["way"], *seconds, *rates, gain])
    return _table(f"{collective} {_SCOPES[scope['scope']]} ({len(scope['ranks'])} ranks)", lines, texts=(1,))


def _fits(fits: Sequence[Row]) -> str:
    lines = [["way", "sizes up to", "alpha us", "1/beta MB/s", "error", "largest"]]
    for found in fits:
        for number, piece in enumerate(found["pieces"]):
            limit, beta = piece["up_to_bytes"], piece["beta_s_per_byte"]
            lines.append([
                "" if number else found["way"], "any" if limit is None else size_text(limit), _us(piece["alpha_s"]),
                _rate(1 / beta) if beta else "-", f"{piece['rms_error']:.0%}", f"{piece['largest_error']:.0%}",
            ])  # fmt: skip
    return _table("Fitted: T(n) = alpha + beta n", lines, texts=(0,))


def _notes(results: Row) -> str:
    shown = {row["way"] for scope in results["scopes"] for row in scope["figures"]}
    ways = [f"{way}: {meaning}" for way, meaning in _WAYS.items() if way in shown]
    return "\n".join([*ways, "x MPI: MPI's median over this one; above 1 is faster than MPI"])


def _us(seconds: float) -> str:
    us = seconds * 1e6
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def _rate(bytes_per_s: float) -> str:
    mb = bytes_per_s / 1e6
    return f"{mb:,.0f}" if mb >= 100 else f"{mb:.3g}"


def _table(title: str, lines: Sequence[Sequence[str]], *, texts: Sequence[int]) -> str:
    """Columns of `texts` are aligned to the left, figures to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = [
        "  ".join(
            cell.ljust(w) if i in texts else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))
        )
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([title, "", shown[0].rstrip(), rule, *(line.rstrip() for line in shown[1:])])
