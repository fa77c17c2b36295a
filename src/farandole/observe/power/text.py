"""A node's energy as a table. What is modelled says so in every row, and its numbers carry a `~`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farandole.observe.power.energy import Energy
from farandole.observe.power.meters import Provenance, Refusal
from farandole.observe.power.nodes import NodeEnergy
from farandole.observe.power.phases import PhaseEnergy
from farandole.observe.power.recording import SamplerCost

__all__ = ["as_text"]

_HEADINGS = ["phase", "part", "joules", "mean W", "above idle J", "how it is known"]
_NUMBERS = (2, 3, 4)
_IDLE = 4


def as_text(node: NodeEnergy, refusals: Sequence[Refusal] = ()) -> str:
    phases = [node.whole, *node.phases]
    rows = [_HEADINGS, *(row for phase in phases for row in _rows(phase, sources=phase is node.whole))]
    if node.idle is None:
        rows = [[cell for column, cell in enumerate(row) if column != _IDLE] for row in rows]
    return "\n".join([_headline(node), "", *_aligned(rows), "", *_notes(node, refusals)])


def _headline(node: NodeEnergy) -> str:
    total = node.whole.total
    if total.provenance is Provenance.MODELLED:
        return f"{node.host}: {node.whole.duration_s:.2f} s, power MODELLED, not measured"
    if total.energy_j is None:
        return f"{node.host}: {node.whole.duration_s:.2f} s, energy unknown: {total.reason}"
    return f"{node.host}: {node.whole.duration_s:.2f} s, {total.energy_j:,.1f} J, {total.provenance}"


def _rows(phase: PhaseEnergy, *, sources: bool) -> Iterator[list[str]]:
    name = phase.name if phase.times == 1 else f"{phase.name} ({phase.times}x)"
    known = {part: figure for part, figure in phase.parts.items() if figure.provenance is not Provenance.NONE}
    shown: dict[str, Energy] = {str(part): figure for part, figure in known.items()}
    if len(known) != 1 and "node" not in known:
        shown["total"] = phase.total
    for part, figure in shown.items():
        yield [name, part, *_cells(figure), _known(figure, source=sources and part != "total")]
        name = ""


def _cells(figure: Energy) -> list[str]:
    mark = "~" if figure.provenance is Provenance.MODELLED else ""
    values = (figure.energy_j, figure.mean_w, figure.above_idle_j)
    return ["-" if value is None else f"{mark}{round(value, 1) + 0.0:,.1f}" for value in values]


def _known(figure: Energy, *, source: bool) -> str:
    if figure.energy_j is None:
        return f"unknown: {figure.reason}"
    return f"{figure.provenance} ({figure.source})" if source else str(figure.provenance)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        last = len(row) - 1
        cells = [
            cell.rjust(width) if column in _NUMBERS and column != last else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        yield "  ".join(cells).rstrip()


def _notes(node: NodeEnergy, refusals: Sequence[Refusal]) -> Iterator[str]:
    parts = node.whole.parts
    missing = [part for part, figure in parts.items() if figure.provenance is Provenance.NONE and not figure.remarks]
    if missing:
        yield f"no meter of: {', '.join(missing)}"
    for refusal in refusals:
        yield f"{refusal.sensor}: {refusal.reason} -> {refusal.advice}"
    remarks = [remark for figure in (*parts.values(), node.whole.total) for remark in figure.remarks]
    yield from (f"note: {remark}" for remark in dict.fromkeys(remarks))
    if node.idle is not None:
        idle = node.idle.total
        watts = "unknown" if idle.mean_w is None else f"{idle.mean_w:,.1f} W"
        yield f"idle: {watts} over {node.idle.duration_s:.1f} s, {idle.provenance}"
    yield _sampling(node.cost, node.interval_s)


def _sampling(cost: SamplerCost, interval_s: float) -> str:
    share = cost.share_of_a_core
    taken = "" if share is None else f"; {share:.2%} of a core"
    return f"sampler: {cost.samples} samples, one every {interval_s:g} s, {cost.missed} missed{taken}"
