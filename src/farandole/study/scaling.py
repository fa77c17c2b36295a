"""Scaling arithmetic: speedup, efficiency, and what the lost time went into. Plain numbers; no framework, no MPI.

    strong    N ranks do together what the base case does: ideally in base_ranks / N of its time
    weak      each rank does what each rank of the base case does: ideally in the same time
    same      no ranks are compared (batch sizes, rates): ideally in the same time

The time above the ideal is lost. It is charged to the phases that have not shrunk as they should:

    load, broadcast     those phases
    communication       gradients that training had to wait for, without the wait for slower ranks
    wait                for slower ranks
    compute             the rest of training: steps that take longer than in the base case
    other               everything else: start, preprocessing, building, evaluating, saving

Shares of all causes add up to 1 - efficiency. A cause that has shrunk by more than it should has a negative share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CAUSES", "WORK", "Scaled", "efficient_to", "ideal_s", "main_cause", "scaled", "verdict"]

CAUSES = ("load", "broadcast", "communication", "wait", "compute", "other")
WORK = ("strong", "weak", "same")
ENOUGH = 0.8
"""The efficiency from which on a verdict says `efficient`."""
_WORDS = {
    "load": "loading the data",
    "broadcast": "broadcasting the weights",
    "communication": "communication that nothing hides",
    "wait": "waiting for slower ranks",
    "compute": "steps that take longer",
    "other": "start-up and other fixed costs",
}

Figures = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """A case against its base case."""

    ranks: int
    base_ranks: int
    total_s: float
    ideal_s: float
    speedup: float
    """Strong: how many times faster. Weak: how many times the work in the same time."""
    efficiency: float
    lost: dict[str, float]
    """By cause, the share of the time that is lost; together 1 - efficiency."""


def ideal_s(base_s: float, base_ranks: int, ranks: int, work: str) -> float:
    """What `ranks` ranks would take if nothing were lost."""
    return base_s * base_ranks / ranks if work == "strong" else base_s


def scaled(base: Figures, figures: Figures, *, base_ranks: int, ranks: int, work: str) -> Scaled | None:
    """None where a total is not known. Figures are those of results: total_s, load_s, train_s, exposed_s, ..."""
    base_s, total_s = base.get("total_s"), figures.get("total_s")
    if not base_s or not total_s:
        return None
    ideal = ideal_s(base_s, base_ranks, ranks, work)
    parts, base_parts = _parts(figures, total_s), _parts(base, base_s)
    lost = {cause: (parts[cause] - ideal_s(base_parts[cause], base_ranks, ranks, work)) / total_s for cause in CAUSES}
    times = ranks / base_ranks if work == "weak" else 1.0
    return Scaled(
        ranks=ranks, base_ranks=base_ranks, total_s=total_s, ideal_s=ideal,
        speedup=times * base_s / total_s, efficiency=ideal / total_s, lost=lost,
    )  # fmt: skip


def _parts(figures: Figures, total_s: float) -> dict[str, float]:
    """The total, taken apart; a figure that is not known stays within what it is a part of."""
    load, broadcast, train = (figures.get(name) or 0.0 for name in ("load_s", "broadcast_s", "train_s"))
    exposed = min(figures.get("exposed_s") or 0.0, train)
    wait = min(figures.get("wait_s") or 0.0, exposed)
    return {
        "load": load,
        "broadcast": broadcast,
        "communication": exposed - wait,
        "wait": wait,
        "compute": train - exposed,
        "other": total_s - load - broadcast - train,
    }


def main_cause(case: Scaled) -> str:
    """The cause with the largest share."""
    return max(CAUSES, key=lambda cause: case.lost[cause])


def efficient_to(cases: Sequence[Scaled], enough: float = ENOUGH) -> Scaled | None:
    """The last case, by ranks, before efficiency falls below `enough`; None where there is none beside the base."""
    best = None
    for case in sorted(cases, key=lambda case: case.ranks):
        if case.efficiency < enough:
            break
        if case.ranks > case.base_ranks:
            best = case
    return best


def verdict(cases: Sequence[Scaled]) -> str:
    """One sentence on a series of ranks."""
    beyond = sorted((case for case in cases if case.ranks > case.base_ranks), key=lambda case: case.ranks)
    if not beyond:
        return "One number of ranks only: nothing to compare."
    last, good = beyond[-1], efficient_to(beyond)
    if good is last:
        return f"Efficient to {last.ranks} ranks ({last.efficiency:.0%}), the most that were tried."
    first_bad = next(case for case in beyond if case.efficiency < ENOUGH)
    why = f"most is lost to {_WORDS[main_cause(first_bad)]} ({_share(first_bad)} of the time at {first_bad.ranks} ranks)"
    if good is None:
        return f"Not efficient at {first_bad.ranks} ranks ({first_bad.efficiency:.0%}): {why}."
    return f"Efficient to {good.ranks} ranks ({good.efficiency:.0%}); beyond that {why}."


def _share(case: Scaled) -> str:
    return f"{case.lost[main_cause(case)]:.0%}"
