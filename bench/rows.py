"""The table: what was measured, ours, the peer's, their ratio, and whether it is what we want."""

from __future__ import annotations

from dataclasses import dataclass

from bench.cases import Case
from bench.estimates import Estimate, median, median_difference, overhead_bound, ratio_of_medians

__all__ = ["Row", "Target", "compared", "exposed", "fastest", "foretold", "overhead", "share", "table"]

_HEADINGS = ("what", "ours", "peer", "peer's", "ratio [95%]", "target", "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a figure should be, and is."""

    wanted: str
    found: float
    met: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    ours: float
    """Seconds; a share of a core where `peer` is empty."""
    peer: str = ""
    peers: float | None = None
    ratio: Estimate | None = None
    """How many times as fast as the peer."""
    target: Target | None = None
    """None: reported for what it tells."""
    in_bytes: bool = False
    """Not seconds."""


def compared(
    case: Case, ours: str, peer: str, *, least: float | None = None, within_s: float | None = None
) -> Row:
    """Ours against a peer: at least `least` times as fast, or at most `within_s` slower."""
    mine, theirs = case.samples[ours], case.samples[peer]
    ratio = ratio_of_medians(theirs, mine)
    target = None
    if least is not None:
        target = Target(wanted=f">= {least:g}x", found=ratio.value, met=ratio.value >= least)
    elif within_s is not None:
        slower_s = median_difference(mine, theirs).value
        target = Target(wanted=f"+{within_s * 1e3:g} ms at most", found=slower_s, met=slower_s <= within_s)
    return Row(what=case.what, ours=median(mine), peer=peer, peers=median(theirs), ratio=ratio, target=target)


def fastest(case: Case, names: list[str]) -> str:
    """Of several ways to do the same by hand, the one to be compared with."""
    return min(names, key=lambda name: median(case.samples[name]))


def exposed(case: Case, ours: str, peer: str, without: str, *, below: float) -> Row:
    """What something adds to work that goes on meanwhile, as a share of what it adds to work that waits."""
    added, waited = (median_difference(case.samples[name], case.samples[without]).value for name in (ours, peer))
    part = added / waited
    return Row(
        what=f"{case.what}: time added", ours=added, peer=peer, peers=waited,
        target=Target(wanted=f"< {below:.0%} of it", found=part, met=part < below),
    )  # fmt: skip


def overhead(case: Case, with_it: str, without: str, *, below: float) -> Row:
    """What something costs: the upper 95% bound over pairs, as a share, is to stay below `below`."""
    on, off = case.samples[with_it], case.samples[without]
    _, bound = overhead_bound(on, off)
    return Row(
        what=case.what,
        ours=median(on),
        peer=without,
        peers=median(off),
        ratio=ratio_of_medians(off, on),
        target=Target(wanted=f"upper bound < {below:.0%}", found=bound, met=bound < below),
    )


def share(case: Case, name: str, *, below: float) -> Row:
    """A share of a core, of the rank that used most."""
    most = max(case.samples[name])
    return Row(
        what=case.what,
        ours=most,
        target=Target(wanted=f"< {below * 100:g}% of a core", found=most, met=most < below),
    )


def foretold(what: str, measured: float, estimated: float, *, within: float) -> Row:
    """Bytes that were measured beside those estimated before: neither more than `within` times the other."""
    found = estimated / measured
    target = Target(wanted=f"within {within:g}x", found=found, met=1 / within <= found <= within)
    return Row(what=what, ours=measured, peer="estimated", peers=estimated, target=target, in_bytes=True)


def table(rows: list[Row]) -> str:
    cells = [list(_HEADINGS), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cells(row: Row) -> list[str]:
    target, amount = row.target, _bytes if row.in_bytes else _seconds
    return [
        row.what,
        amount(row.ours) if row.peer else f"{row.ours:.2%}",
        row.peer,
        "" if row.peers is None else amount(row.peers),
        "" if row.ratio is None else f"{row.ratio.value:.2f}x [{row.ratio.low:.2f}, {row.ratio.high:.2f}]",
        "" if target is None else target.wanted,
        "" if target is None else _verdict(target),
    ]


def _verdict(target: Target) -> str:
    word = "met" if target.met else "missed"
    if target.wanted.endswith("most"):
        return f"{word} ({target.found * 1e3:+.2f} ms)"
    if target.wanted.startswith("within"):
        return f"{word} ({target.found:.2f}x)"
    shown = target.wanted.startswith("upper") or target.wanted.endswith("of it")
    return f"{word} ({target.found:.2%})" if shown else word


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3f} ms" if value < 0.01 else f"{value * 1e3:.1f} ms"


def _bytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
