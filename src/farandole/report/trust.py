"""How far to believe the page: what was measured, how often, on what, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from farandole.report.traces import Trace
from farandole.results.cases import Case, varying, why_busy_in
from farandole.results.numbers import count, number, percent, quantity
from farandole.results.reading import Study
from farandole.results.runs import Sampling, sampling_of
from farandole.results.schema import PERHAPS_PARTS

__all__ = ["Item", "made_apart", "trust_of"]

_NONE_FINISHED = "No run has finished."


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing to know before believing: `level` is good, care, bad or none (not known)."""

    name: str
    value: str
    level: str
    words: str
    """What it means, said on hover; in print, where nobody can case, if it is care or bad."""


def trust_of(study: Study, cases: Sequence[Case], traces: Sequence[Trace]) -> list[Item]:
    """`traces` are those of its runs that are on the page: one, or two that are compared."""
    samplings = [found for result in study.finished if result.run and (found := sampling_of(result.run))]
    power = [_power(study, cases, samplings), _coverage(study, samplings), _sampler(samplings), _threads(cases)]
    items = [
        *([] if study.kind == "loaders" else power), *([_clock(traces)] if traces else []), *map(_gaps, traces), _repeats(study, cases),
        _failed(study), _oversubscribed(cases), _machine(study, cases), _git(study),
    ]  # fmt: skip
    return [item for item in items if item is not None]


def made_apart(study: Study, other: Study) -> list[str]:
    """In what the machines and versions differ that two studies were made with, as far as both are known."""
    before, after = _environment(study), _environment(other)
    return [f"{name} {before[name]} → {after[name]}" for name in before if name in after and before[name] != after[name]]


def _environment(study: Study) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for made in study.makings:
        told = made.get("environment") or {}
        named = {"processor": told.get("cpu"), "cores": told.get("cores"), "system": told.get("system"), "Python": told.get("python")}
        for name, value in (named | (told.get("packages") or {})).items():
            if value and str(value) not in found.setdefault(name, []):
                found[name].append(str(value))
    return {name: " and ".join(values) for name, values in found.items() if values}


def _power(study: Study, cases: Sequence[Case], samplings: Sequence[Sampling]) -> Item:
    kinds = {kind for case in cases for kind in case.provenances} - {"none"}
    sources = ", ".join(dict.fromkeys(source for found in samplings for source in found.sources))
    told = f" ({sources})" if sources else ""
    if "modelled" in kinds:
        words = f"TDP × utilisation{told}: CPU time in other units, no measurement, no evidence of a saving."
        return Item(name="power", value="modelled", level="care", words=words)
    if not kinds:
        return Item(name="power", value="not known", level="none", words=_NONE_FINISHED if not study.finished else "No run has a figure of energy.")
    kind = "whole nodes" if kinds == {"measured-node"} else "parts of nodes"
    if any(PERHAPS_PARTS in case.marks for case in cases):
        words = "Joules that the batch system has counted, without saying whether of whole nodes or of parts."
        return Item(name="power", value="measured, not known what", level="care", words=words)
    return Item(name="power", value=f"measured, {kind}", level="good", words=f"Meters of {kind}{told}.")


def _coverage(study: Study, samplings: Sequence[Sampling]) -> Item:
    known = sum(result.measure("energy_j") is not None for result in study.finished)
    covered = [found.covered for found in samplings if found.covered is not None]
    if not known:
        reason = study.reason("energy_j") or "Power was not sampled."
        return Item(name="energy known", value="in no run", level="none", words=reason if study.finished else _NONE_FINISHED)
    every = known == len(study.finished)
    seen = f"; meters have seen {_seen(min(covered))}" if covered else ""
    return Item(
        name="energy known", value="in all runs" if every else f"in {known} of {len(study.finished)} runs",
        level="good" if every else "care", words=f"Runs whose energy is known{seen}.",
    )  # fmt: skip


def _seen(share: float) -> str:
    """Never rounded up to all."""
    if share >= 1:
        return "all of their time"
    return f"{percent(math.floor(1000 * share + 1e-6) / 1000, 1)} of their time or more, the rest is bridged"


def _sampler(samplings: Sequence[Sampling]) -> Item | None:
    shares = [found.share_of_a_core for found in samplings if found.share_of_a_core is not None]
    if not shares:
        return None
    worst = max(shares)
    words = "What reading the meters cost, in the run where it cost most."
    return Item(name="sampler", value=f"{percent(worst, 1)} of a core", level="good" if worst < 0.005 else "care", words=words)


def _clock(traces: Sequence[Trace]) -> Item:
    """Of the trace in which it is largest."""
    trace = max(traces, key=lambda trace: -1.0 if trace.residual_s is None else trace.residual_s)
    if trace.residual_s is None:
        return Item(name="clock error", value="not known", level="none", words=trace.reason or "The trace does not say.")
    if trace.residual_s == 0:
        return Item(name="clock error", value="none, one host", level="good", words="All ranks of the trace read the same clock.")
    return Item(
        name="clock error", value=f"±{quantity(trace.residual_s, 's')}", level="good" if trace.residual_s < 1e-3 else "care",
        words="How far the ranks' clocks may be apart in the trace, after they were aligned.",
    )  # fmt: skip


def _gaps(trace: Trace) -> Item | None:
    if not trace.gaps:
        return _condensed(trace)
    words = f"What the page shows of the run on {trace.of}, step by step, is of what was recorded: {'; '.join(trace.gaps)}."
    return Item(name="trace", value="not whole", level="bad", words=words)


def _condensed(trace: Trace) -> Item | None:
    if not trace.condensed:
        return None
    words = f"To keep the file small: {trace.condensed}. Figures are of all steps; waits are drawn of those that are whole."
    return Item(name="trace", value="condensed", level="care", words=words)


def _repeats(study: Study, cases: Sequence[Case]) -> Item:
    counts = sorted({case.runs for case in cases if case.runs})
    if not counts:
        return Item(name="repeats", value="none", level="bad", words=_NONE_FINISHED)
    if counts == [1] and all(case.imported for case in cases if case.runs):
        words = "Values as they were imported, one for each configuration: of how many runs they are is not said."
        return Item(name="repeats", value="not known", level="none", words=words)
    value = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    words = "Runs of each configuration; values are medians, spreads from the least to the most."
    once = "Each configuration was run once: nothing says how much runs vary, and no difference is claimed."
    return Item(name="repeats", value=value, level="good" if counts[0] > 2 else "care", words=once if counts[-1] == 1 else words)


def _threads(cases: Sequence[Case]) -> Item | None:
    """Speedups of ranks with other numbers of threads compare other things than ranks."""
    known = sorted({int(threads) for case in cases if (threads := case.settings.get("threads") or case.median("threads"))})
    if all(case.imported for case in cases):
        return None
    if not known:
        words = "Results of an older version do not say how many threads a rank had: with fewer ranks it may have been more."
        return Item(name="threads", value="not known", level="care", words=words) if len({case.ranks for case in cases}) > 1 else None
    value = f"{', '.join(map(str, known))} a rank"
    asked = "threads" in varying(case.settings for case in cases)
    words = "Every rank computes with as many threads." if len(known) == 1 else "Ranks differ in their threads: a speedup is of both."
    return Item(name="threads", value=value, level="good" if len(known) == 1 or asked else "care", words=words)


def _failed(study: Study) -> Item | None:
    if study.is_run:
        return None
    planned, failed, missing = study.planned, len(study.failed), study.planned - len(study.results)
    again = study.tries - len(study.results)
    told = [f"{count(failed, 'case')} failed"] if failed else []
    told += [f"{missing} not run yet"] if missing else []
    told += [f"{count(again, 'attempt')} repeated"] if again else []
    words = f"Of {planned} planned: {', '.join(told) or 'all finished'}."
    value = f"{failed} of {planned}" + (f", {missing} to come" if missing else "")
    return Item(name="failed runs", value=value, level="bad" if failed else "care" if missing else "good", words=words)


def _oversubscribed(cases: Sequence[Case]) -> Item | None:
    ranks = sorted({case.ranks for case in cases if case.oversubscribed})
    if not ranks:
        return None
    return Item(
        name="oversubscribed", value=f"on {', '.join(map(str, ranks))} rank{'' if ranks == [1] else 's'}", level="bad",
        words="More threads than cores: they take turns, and their times say nothing of a machine with a core for each.",
    )  # fmt: skip


def _machine(study: Study, cases: Sequence[Case]) -> Item | None:
    watched = any(result.measure(name) is not None for result in study.finished for name in ("others_share", "steal_share"))
    if not watched:
        return _machine_before(study)
    why = why_busy_in(cases)
    words = f"While a run lasted, {', '.join(why)}." if why else "Neither other programs nor its host took much of its processor time while runs lasted."
    return Item(name="machine", value="busy" if why else "quiet", level="care" if why else "good", words=words)


def _machine_before(study: Study) -> Item | None:
    """Where runs do not know what went on beside them."""
    environments = [made.get("environment") or {} for made in study.makings]
    loads = [(found["load_average"][0], found["cores"]) for found in environments if found.get("load_average") and found.get("cores")]
    if not loads:
        return None
    load, cores = max(loads, key=lambda found: found[0] / found[1])
    busy = load > 1.5 * cores
    words = f"The load average was {number(load)} on {count(cores, 'core')} when it began."
    return Item(name="machine", value="busy" if busy else "quiet", level="care" if busy else "good", words=words)


def _git(study: Study) -> Item | None:
    gits = [git for made in study.makings if isinstance(git := made.get("git"), dict)]
    if not gits:
        return None
    commits = list(dict.fromkeys(str(git.get("commit"))[:10] for git in gits))
    changed = any(git.get("changed") for git in gits)
    words = "The folder had changes that no commit has." if changed else "Everything was committed."
    if len(commits) > 1:
        words = f"Runs were made with different commits: {', '.join(commits)}. {words}"
    value = commits[0] if len(commits) == 1 else f"{len(commits)} commits"
    return Item(
        name="source", value=f"{value}{' + changes' if changed else ''}", level="care" if changed or len(commits) > 1 else "good",
        words=words,
    )  # fmt: skip
