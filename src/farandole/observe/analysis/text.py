"""An analysis as text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

__all__ = ["as_text", "gaps_of"]

_MOST_RANKS = 32
_MOST_NAMED = 8
_COLUMNS = ("total_s", "comm_s", "exposed_s", "hidden_s", "wait_s", "data_stall_s")
_HEADINGS = ("rank", "steps", "step s", "total s", "comm s", "exposed s", "hidden s", "wait s", "data s")


def as_text(found: Mapping[str, Any]) -> str:
    return "\n".join([*_head(found), "", *_ranks(found["ranks"]), "", *_components(found["components"]), *_power(found)])


def _head(found: Mapping[str, Any]) -> Iterator[str]:
    residual = found["residual_s"]
    how = f" ({found['clock']})" if found["clock"] else ""
    known = "unknown" if residual is None else "0 s" if residual == 0 else f"at most {residual * 1e6:,.1f} us"
    ranks = len(found["ranks"])
    yield f"{ranks} rank{'s' if ranks != 1 else ''}; clocks apart: {known}{how}"
    yield from gaps_of(found)
    if found["condensed"]:
        yield f"condensed: {found['condensed']['what']}"


def gaps_of(found: Mapping[str, Any]) -> Iterator[str]:
    """What was not recorded, or is lost: figures are of the rest. Nothing where the trace is whole."""
    if found["missing_ranks"]:
        yield f"no part of {_named(found['missing_ranks'])}"
    dropped = found["dropped_by_rank"]
    if dropped:
        lost, reasons = sum(told["dropped"] for told in dropped.values()), {told["dropped_because"] for told in dropped.values()}
        yield f"recording was cut on {_named(dropped)}: {lost:,} events are lost ({', '.join(sorted(reasons))})"
    if found["unfinished_ranks"]:
        yield f"the recording of {_named(found['unfinished_ranks'])} was not ended: its last moments are missing"
    if found["cut_bytes_by_rank"]:
        yield f"torn: {sum(found['cut_bytes_by_rank'].values()):,} bytes of {_named(found['cut_bytes_by_rank'])} cannot be read"
    for name, reason in found["ignored_parts"].items():
        yield f"left out: {name}, {reason}"


def _named(ranks: Collection[int | str]) -> str:
    shown = ", ".join(map(str, list(ranks)[:_MOST_NAMED]))
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}" + (f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else "")


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All, or where there are many those that say most: the ones that others have waited for longest."""
    shown = sorted(ranks, key=lambda rank: rank["wait_s"])[:_MOST_RANKS]
    rows = [[str(rank["rank"]), *_steps(rank), *(_figure(rank[name]) for name in _COLUMNS)] for rank in shown]
    yield from aligned([list(_HEADINGS), *sorted(rows, key=lambda row: int(row[0]))])
    if len(ranks) > len(shown):
        yield f"({len(ranks) - len(shown)} more, which waited longer for others)"


def _figure(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


def _steps(rank: Mapping[str, Any]) -> list[str]:
    steps = rank["steps"]
    return [f"{sum(rank['step_counts'])}", f"{median(steps):.4f}" if steps else "-"]


def _components(components: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if components:
        rows = [[_named_component(row), f"{row['calls']:g}", *(_figure(row[name]) for name in ("seconds", "self_s")), _each(row)] for row in components]
        yield from aligned([["component, mean of ranks", "calls", "seconds", "self s", "a call"], *rows], left=1)


def _named_component(row: Mapping[str, Any]) -> str:
    """Below the one it lies within, and further to the right."""
    beside = " (beside training)" if row["beside_s"] > row["seconds"] / 2 else ""
    return f"{'  ' * row['depth']}{row['name']}{beside}"


def _each(row: Mapping[str, Any]) -> str:
    return f"{row['seconds'] / row['calls'] * 1e3:.3f} ms"


def _power(found: Mapping[str, Any]) -> Iterator[str]:
    for node in found["power"]:
        mark = "~" if node["provenance"] == "modelled" else ""
        energy = f"unknown ({node['reason']})" if node["energy_j"] is None else f"{mark}{node['energy_j']:,.1f} J"
        window = f", {node['window_reason']}" if node["window_reason"] else ""
        yield f"power of {node['node']}: {energy}, {node['provenance']}{window}"
        yield from (f"note: {remark}" for remark in node["remarks"])


def aligned(rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        yield "  ".join(cells).rstrip()
