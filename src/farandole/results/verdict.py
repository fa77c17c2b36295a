"""What results come to: a headline of one sentence, at most 120 characters, and the caveats that belong below it.

A difference is claimed where repeats support it (results/statistics.py), and the interval is said with it. Where each
configuration ran once, the headline has the times and says that nothing can be told from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from farandole.results.cases import (
    EMULATED,
    Axis,
    Case,
    Series,
    as_word,
    is_emulated,
    judged_on,
    main_time,
    quality_of,
    unknown_in,
    why_busy_in,
)
from farandole.results.comparing import Comparison, Pair
from farandole.results.differences import Change, changes_of, explained, kind_of, phases_changed_by
from farandole.results.numbers import count, number, percent, seconds, times
from farandole.results.reading import Study
from farandole.results.scaling import CAUSES, Scaling
from farandole.results.schema import PHASES
from farandole.results.statistics import Difference, compare

__all__ = ["EFFICIENT", "LONGEST", "Verdict", "comparison_verdict", "run_verdict", "study_verdict"]

EFFICIENT = 0.8
"""From here on a rank count is called efficient."""
LONGEST = 120
"""Characters of a headline."""
_LEAST_EXPLAINED = 0.1
"""A smaller share of a change is called none."""
_WORDS = {cause.name: cause.words for cause in CAUSES}


@dataclass(kw_only=True, slots=True)
class Verdict:
    """One sentence, and what a reader must know before believing it."""

    headline: str
    caveats: list[str] = field(default_factory=list)
    """Sentences."""

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {caveat}" for caveat in self.caveats)])

    def of(self, side: str) -> Verdict:
        """Of one of two studies, which is said first."""
        found = _verdict([f"{side}: {self.headline[:1].lower()}{self.headline[1:]}", self.headline], as_it_is=True)
        return Verdict(headline=found.headline, caveats=[*found.caveats, *self.caveats])


def _verdict(first: str | Sequence[str], *more: str, as_it_is: bool = False) -> Verdict:
    """`first`: several ways to say the headline, of which the first one counts that is short enough.

    `as_it_is`: its first word is a name, which no capital letter may change.
    """
    ways = [first] if isinstance(first, str) else first
    told = [f"{words.rstrip('.')}." if as_it_is else _sentence(words) for words in ways]
    headline = next((words for words in told if len(words) <= LONGEST), None) or _cut(told[-1])
    return Verdict(headline=headline, caveats=[*_rest(told[0], headline), *(_sentence(words) for words in more if words)])


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}".rstrip(".") + "."


def _rest(whole: str, headline: str) -> list[str]:
    """What the headline lacks: a clause at the end by itself, else the whole."""
    if whole == headline:
        return []
    clause = whole.removeprefix(f"{headline.rstrip('.')}; ")
    return [whole if clause == whole else _sentence(clause)]


def _cut(words: str) -> str:
    kept = words[: LONGEST - 1]
    return f"{kept.rpartition(' ')[0] or kept}…"


def study_verdict(study: Study, series: Sequence[Series], axis: Axis, scalings: Sequence[Scaling]) -> Verdict:
    """Of the first series and its scalings, which is named where there are several."""
    cases = [case for one in series for case in one.cases]
    if not study.finished:
        reasons = [result.reason for result in study.failed if result.reason]
        return _verdict(f"No run has finished{f': {reasons[-1]}' if reasons else ''}")
    measures = [main_time(cases), quality_of(cases)]
    if is_emulated(cases):
        told, measures = cases, measures[1:]
        headlines, *rest = _emulated(series) if axis.name == EMULATED else _best_as(series, axis)
    elif axis.name == "ranks" and len(scalings) > 1 and not _of_same_cores(scalings):
        told = [one.case for one in _fair(scalings) or scalings]
        headlines, *rest = _scaling(scalings, series[0].label if len(series) > 1 else "")
        rest += [*_training(scalings), _accuracy(scalings)]
    else:
        told = cases
        headlines, *rest = _best(series, axis)
    common = [*_unknown(told, measures), *judged_on(told), _busy(told), "" if study.kind == "loaders" else _power(cases)]
    return _verdict(headlines.split("\n"), *rest, *common)


def _unknown(cases: Sequence[Case], measures: Sequence[tuple[str, str] | None]) -> list[str]:
    """Of measures that a verdict tells: in how many runs they are not known, as where training has diverged."""
    told = [(words, unknown_in(cases, measure)) for measure, words in filter(None, measures)]
    return [f"{words} is not known in {runs} and told of the others" for words, runs in told if runs]


def _busy(cases: Sequence[Case]) -> str:
    """A sentence where others had a part of the machine; empty where it was quiet."""
    why = why_busy_in(cases)
    some = "" if all(why_busy_in([case]) for case in cases) else "in part "
    return f"{some}measured on a busy machine: {', '.join(why)}" if why else ""


def _of_same_cores(scalings: Sequence[Scaling]) -> bool:
    """One process with all cores against several: a choice, and no scaling."""
    cores = {(one.ranks * int(one.case.settings.get("threads") or 0)) for one in scalings}
    return len(cores) == 1 and cores != {0}


def _fair(scalings: Sequence[Scaling]) -> list[Scaling]:
    """What ranks that share cores lose says nothing of a machine that has cores for them."""
    return [one for one in scalings if not one.case.oversubscribed]


def _scaling(scalings: Sequence[Scaling], label: str) -> Iterator[str]:
    fair = _fair(scalings)
    shared = [one.ranks for one in scalings if one.case.oversubscribed]
    of = f"with {label}, " if label else ""
    what = "training alone: " if scalings[0].training_only else ""
    found = list(_limit(fair)) if len(fair) > 1 else [_alone(fair)]
    yield "\n".join(f"{of}{what}{way}" for way in found[0].split("\n"))
    yield from found[1:]
    if shared:
        yield f"{_ranks(shared)} shared cores (oversubscribed) and {'says' if shared == [1] else 'say'} nothing of scaling"


def _alone(fair: Sequence[Scaling]) -> str:
    if not fair:
        return "no run had a core for every rank"
    return f"only the run on {count(fair[0].ranks, 'rank')} had a core for {'each' if fair[0].ranks > 1 else 'it'}"


def _limit(scalings: Sequence[Scaling]) -> Iterator[str]:
    """How far it is efficient; only what intervals support, each of them one of several that could have been picked."""
    last, among = scalings[-1], len(scalings) - 1
    found = {id(one): one.efficiency_difference(among) for one in scalings[1:]}
    cause = next((name for name, share in last.losses.items() if share >= 0.02), "rest")
    costs = f"; {_WORDS[cause]} costs most ({percent(last.losses[cause])} of the time)" if cause != "rest" else ""
    if not all(one is not None and one.known for one in found.values()):
        base = scalings[0]
        plain = f"{seconds(base.time_s)} on {count(base.ranks, 'rank')}, {seconds(last.time_s)} on {last.ranks}: efficiency {percent(last.efficiency)}"
        yield f"{plain}{costs}\n{plain}"
        yield f"{_why_few([one.case for one in scalings], 'too few repeats to tell a difference')}; nothing is claimed of the efficiency"
        return
    good = _last_good(scalings, found)
    beyond = next((one for one in scalings if one.ranks > good.ranks), None)
    if beyond is None:
        clause = f"efficient to {count(good.ranks, 'rank')}, the most that were run: {_of(good, found)}"
        yield f"{clause}{costs}\n{clause}"
        return
    interval = found[id(beyond)]
    if interval is not None and interval.high is not None and interval.high < EFFICIENT:
        clause = f"{_so_far(good, scalings, found)}: {_of(beyond, found)} on {beyond.ranks:,}"
    else:
        clause = f"efficiency on {count(beyond.ranks, 'rank')} is {_of(beyond, found)}: {percent(EFFICIENT)} is neither reached nor missed for sure"
    yield f"{clause}{costs}\n{clause}"
    if beyond is not last:
        yield f"efficiency on {count(last.ranks, 'rank')}: {_of(last, found)}"


def _why_few(cases: Sequence[Case], what: str) -> str:
    if any(case.imported for case in cases):
        return f"as imported, without its single runs: {what}"
    return f"{'one run each' if all(case.runs == 1 for case in cases) else 'one run of some'}: {what} (--repeats 3)"


def _last_good(scalings: Sequence[Scaling], found: dict[int, Difference | None]) -> Scaling:
    """The last before efficiency is not surely above EFFICIENT for the first time."""
    good = scalings[0]
    for one in scalings[1:]:
        interval = found[id(one)]
        if interval is None or interval.low is None or interval.low < EFFICIENT:
            break
        good = one
    return good


def _so_far(good: Scaling, scalings: Sequence[Scaling], found: dict[int, Difference | None]) -> str:
    if good is scalings[0]:
        return f"not efficient beyond {count(good.ranks, 'rank')}"
    return f"efficient to {count(good.ranks, 'rank')}, {_of(good, found)}, not beyond"


def _of(one: Scaling, found: dict[int, Difference | None]) -> str:
    interval = found[id(one)]
    assert interval is not None
    return f"{_share(one.efficiency)} ({_share(interval.low)} to {_share(interval.high)})"


def _share(value: float | None) -> str:
    """Never rounded up to what is called efficient."""
    return percent(value, 1 if value is not None and value < EFFICIENT <= round(value, 2) else 0)


def _training(scalings: Sequence[Scaling]) -> list[str]:
    last = _fair(scalings)[-1:] or scalings[-1:]
    share = last[0].training_efficiency
    if share is None or last[0].training_only or last[0].is_base or abs(share - last[0].efficiency) < 0.05:
        return []
    return [f"Efficiency of training alone on {count(last[0].ranks, 'rank')}: {percent(share)}, of the whole run {percent(last[0].efficiency)}"]


def _ranks(ranks: Sequence[int]) -> str:
    *first, last = sorted(set(ranks))
    told = f"{', '.join(map(str, first))} and {last}" if first else str(last)
    return f"{told} rank{'' if told == '1' else 's'}"


def _accuracy(scalings: Sequence[Scaling]) -> str:
    """Speed that is paid for with accuracy is no speed: said where it falls, as far as seeds tell it."""
    found = quality_of([one.case for one in scalings])
    if found is None or "accuracy" not in found[0]:
        return ""
    measure, words = found
    first, among = scalings[0].case, len(scalings) - 1
    fallen = [(one, difference) for one in scalings[1:] if (difference := _fall(first, one.case, measure, among)) and difference.claimed and difference.value < 0]
    if not fallen:
        return ""
    worst, _ = min(fallen, key=lambda one: one[1].value)
    return f"{words} falls from {first.median(measure) or 0.0:.2f} to {worst.case.median(measure) or 0.0:.2f} on {worst.ranks}"


def _fall(first: Case, other: Case, measure: str, among: int) -> Difference | None:
    return compare(first.repeats(measure), other.repeats(measure), ratio=False, among=among)


def _emulated(series: Sequence[Series]) -> Iterator[str]:
    """How far accuracy holds: all that ranks which one stands for can say."""
    found = quality_of([case for one in series for case in one.cases])
    if found is None or "accuracy" not in found[0]:
        yield "Ranks are emulated, and no run has an accuracy"
        return
    told = [clause for one in series if (clause := _held(one, found[0]))]
    yield f"{found[1]} {told[0]}" if told else f"{found[1]} is of one number of ranks only"
    yield from told[1:]


def _held(series: Series, measure: str) -> str:
    known = sorted((case for case in series.cases if case.median(measure) is not None), key=lambda case: case.trained_as)
    if len(known) < 2:
        return ""
    first, last, label = known[0], known[-1], f" with {series.label}" if series.label else ""
    differences = [_fall(first, case, measure, len(known) - 1) for case in known[1:]]
    ends = f"is {first.median(measure):.2f} as {first.trained_as} and {last.median(measure):.2f} as {count(last.trained_as, 'rank')}{label}"
    if not all(one is not None and one.known for one in differences):
        return f"{ends}: one seed each, too few to tell a difference"
    lost = next((case for case, one in zip(known[1:], differences) if one is not None and one.claimed and one.value < 0), None)
    if lost is None:
        return f"is not seen to fall to {count(last.trained_as, 'rank')}{label} ({first.median(measure):.2f} to {last.median(measure):.2f})"
    before = known[known.index(lost) - 1]
    more = "" if lost is last else f", {last.median(measure):.2f} on {last.trained_as}"
    return f"holds to {count(before.trained_as, 'rank')}{label} ({before.median(measure):.2f}) and is {lost.median(measure):.2f} on {lost.trained_as}{more}"


def _best_as(series: Sequence[Series], axis: Axis) -> Iterator[str]:
    """Of emulated ranks where something else is varied."""
    cases = [case for one in series for case in one.cases]
    found = quality_of(cases)
    if found is None or "accuracy" not in found[0]:
        yield "Ranks are emulated, and no run has an accuracy"
        return
    known = sorted(((value, case) for case in cases if (value := case.median(found[0])) is not None), key=lambda one: -one[0])
    (best, where), (worst, elsewhere) = known[0], known[-1]
    told = f"{found[1]} is {best:.2f} with {axis.label} {_named(where, axis, series)}"
    more = "" if len(known) == 1 else f" and {worst:.2f} with {_named(elsewhere, axis, series)}"
    yield f"trained as {_ranks([case.trained_as for _, case in known])}, {told}{more}"
    if len(known) > 1 and not _told_apart(where, elsewhere, found[0], len(known)):
        yield "Which is better cannot be told from so few seeds"


def _told_apart(one: Case, other: Case, measure: str, cases: int) -> bool:
    """Where the best and the worst were picked out of all, any two of which could have been."""
    difference = compare(one.repeats(measure), other.repeats(measure), ratio=False, among=_pairs(cases))
    return difference is not None and difference.claimed


def _pairs(cases: int) -> int:
    return cases * (cases - 1) // 2


def _best(series: Sequence[Series], axis: Axis) -> Iterator[str]:
    """The fastest, against what differs along the axis alone: on other ranks, say, times differ for other reasons."""
    measure = main_time([case for one in series for case in one.cases])
    if measure is None:
        yield "Runs finished, but none says how long it took"
        return
    cases = [case for one in series for case in one.cases if case.median(measure[0])]
    if len(cases) == 1:
        yield f"one configuration: {measure[1].lower()} {seconds(cases[0].median(measure[0]))} on {count(cases[0].ranks, 'rank')}"
        return
    first, *more = [one for one in series if any(case.median(measure[0]) for case in one.cases)]
    of = f"with {first.label}, " if more else ""
    yield "\n".join(f"{of}{way}" for way in _fastest(first, axis, measure).split("\n")) + "\n" + _fastest(first, axis, measure)
    yield from (f"With {one.label}, {_fastest(one, axis, measure).partition(chr(10))[0]}" for one in more[:2])
    if len(more) > 2:
        yield f"{len(more) - 2} more in the table"
    yield _best_quality(cases, series, axis)


def _fastest(series: Series, axis: Axis, measure: tuple[str, str]) -> str:
    """Ways to say it, a line each."""
    name, words = measure
    cases = sorted((case for case in series.cases if case.median(name)), key=lambda case: case.median(name) or 0.0)
    quick, slow = cases[0], cases[-1]
    what = "" if name == "total_s" else f"{words.lower()} "
    if len(cases) == 1:
        return f"{_said(quick, axis)}: {what}{seconds(quick.median(name))}"
    pair = Pair(value=None, before=slow, after=quick)
    kind = kind_of(pair, name, [axis.name], _pairs(len(cases)))
    if kind == "told":
        found = pair.difference(name, _pairs(len(cases)))
        assert found is not None and found.low is not None and found.high is not None
        told = f"fastest with {_said(quick, axis)}: {what}{seconds(quick.median(name))}, {times(1 / found.value)} as fast as {_short(slow, axis)}"
        return f"{told} ({number(1 / found.high)} to {times(1 / found.low)})\n{told}"
    told = f"{words.lower()} {seconds(quick.median(name))} with {_said(quick, axis)}, {seconds(slow.median(name))} with {_short(slow, axis)}"
    if kind == "unexplained":
        change, *_ = changes_of(slow, quick, phases_changed_by([axis.name]))
        phase = PHASES[change.phase]
        return f"{told}: {phase} ({seconds(change.before_s)} → {seconds(change.after_s)}) does not explain it"
    return f"{told}: {'no difference that these runs could tell' if kind == 'none' else 'too few repeats to tell'}"


def _best_quality(cases: Sequence[Case], series: Sequence[Series], axis: Axis) -> str:
    found = quality_of(cases)
    if found is None:
        return ""
    sign = -1 if "accuracy" in found[0] else 1
    known = sorted((case for case in cases if case.median(found[0]) is not None), key=lambda case: sign * (case.median(found[0]) or 0.0))
    if len(known) < 2:
        return ""
    best, worst = known[0], known[-1]
    apart = _told_apart(best, worst, found[0], len(known))
    told = f"{found[1]} {number(best.median(found[0]))} with {_named(best, axis, series)}, {number(worst.median(found[0]))} with {_named(worst, axis, series)}"
    return told if apart else f"{told}: too few seeds to tell a difference"


def _named(case: Case, axis: Axis, series: Sequence[Series]) -> str:
    """Its value on the axis, and where there are several series, which of them it is in."""
    label = next(one.label for one in series if any(other is case for other in one.cases))
    return _short(case, axis) + (f" ({label})" if len(series) > 1 and label else "")


def _said(case: Case, axis: Axis) -> str:
    """`batch size 40`, `2 ranks x 1 thread`."""
    return _short(case, axis) if axis.name == "ranks" else f"{axis.label} {_short(case, axis)}"


def _short(case: Case, axis: Axis) -> str:
    if axis.name != "ranks":
        return as_word(case.settings.get(axis.name))
    threads = case.settings.get("threads")
    return count(case.ranks, "rank") + (f" x {count(int(threads), 'thread')}" if threads else "")


def _power(cases: Sequence[Case]) -> str:
    kinds = {kind for case in cases for kind in case.provenances}
    if "modelled" in kinds:
        return "power modelled, not measured"
    if kinds <= {"none"}:
        return "power not known"
    return "power measured" + (" in part of the runs" if "none" in kinds else "")


def run_verdict(study: Study) -> Verdict:
    result = study.results[0]
    total = result.measure("total_s")
    phases = sorted(((part_s, words) for name, words in PHASES.items() if (part_s := result.measure(f"{name}_s"))), reverse=True)
    ranks, epochs = int(result.settings.get("ranks") or 1), result.measure("epochs")
    trained = f" for {count(int(epochs), 'epoch')}" if epochs else ""
    clause = f"{count(ranks, 'rank')} trained{trained} in {seconds(total)}"
    told = [f"{words} took {percent(part_s / total)}" for part_s, words in phases[:2]] if total else []
    case = Case(settings={}, results=[result])
    found = quality_of([case])
    quality = f"{found[1]} {number(result.measure(found[0]))}" if found else ""
    most = f"; {' and '.join(told)} of it" if told else ""
    return _verdict(f"{clause}{most}", quality, *judged_on([case]), _busy([case]), _power([case]))


def comparison_verdict(comparison: Comparison) -> Verdict:
    """At the far end of the axis, where it matters most, as far as ranks had cores of their own."""
    measure, words = comparison.measure
    pairs = [pair for pair in comparison.pairs if pair.saved(measure) is not None]
    if not pairs:
        return _verdict(f"{comparison.before} and {comparison.after} have no finished configuration in common")
    pairs = [pair for pair in pairs if pair.label == pairs[0].label]
    fair = [pair for pair in pairs if not pair.oversubscribed]
    pair = (fair or pairs)[-1]
    where = comparison.where(pair) + (f", {pair.label}" if pair.label else "")
    headlines, *rest = _time(pair, comparison, where)
    told, joules = [pair.before, pair.after], pair.saved("energy_j") is not None and not pair.energy_caveat
    rest += [*_sharing(pairs, fair), _energy(pair, comparison)]
    rest += [*_unknown(told, [(measure, words), ("energy_j", "Energy") if joules else None]), _busy(told)]
    return _verdict(headlines.split("\n"), *rest, as_it_is=comparison.of_folders)


def _time(pair: Pair, comparison: Comparison, where: str) -> Iterator[str]:
    sides, (measure, words) = f"{comparison.after} instead of {comparison.before}", comparison.measure
    kind, found = kind_of(pair, measure, comparison.settings), pair.difference(measure)
    if kind == "few":
        ends = f"{'' if measure == 'total_s' else f'{words.lower()} '}{seconds(pair.before.median(measure))} → {seconds(pair.after.median(measure))} {where}"
        yield f"{sides}: {ends}, too few repeats to tell\n{ends}: too few repeats to tell"
        yield _singles(pair, comparison)
    elif kind == "none":
        yield f"{sides}: no difference {where} that these runs could tell\nno difference {where} that these runs could tell"
    elif kind == "unexplained":
        yield from _unexplained(pair, comparison, sides, where)
    elif found is not None and found.low is not None and found.high is not None:
        saved = 1 - found.value
        low, high = sorted((abs(1 - found.low), abs(1 - found.high)))
        told = f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} {words.lower()} {where}"
        spread = f"({percent(low)} to {percent(high)})"
        yield f"{sides}: {told} {spread}\n{sides}: {told}\n{told} {spread}"
        if measure == "total_s":
            yield from (_told(change, " changed most,") for change in changes_of(pair.before, pair.after, PHASES)[:1])


def _singles(pair: Pair, comparison: Comparison) -> str:
    single = [name for name, case in ((comparison.before, pair.before), (comparison.after, pair.after)) if len(case.repeats(comparison.measure[0])) < 2]
    if len(single) == 1 and not pair.before.imported | pair.after.imported:
        return f"One run of {single[0]}: how far it would differ from others is not known (--repeats 3)"
    return _why_few([pair.before, pair.after], "how far runs differ by themselves is not known")


def _energy(pair: Pair, comparison: Comparison) -> str:
    saved = pair.saved("energy_j")
    if saved is None:
        return ""
    if pair.energy_caveat:
        return f"Energy is {pair.energy_caveat} and not compared"
    if kind_of(pair, "total_s", comparison.settings) == "unexplained":
        return "Energy follows the time and is not compared"
    found = pair.difference("energy_j")
    if found is None or not found.known:
        return "Energy: too few repeats to tell a difference"
    if not found.claimed:
        return "No difference of the energy that these runs could tell"
    low, high = sorted((abs(1 - (found.low or 0.0)), abs(1 - (found.high or 0.0))))
    return f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} energy ({percent(low)} to {percent(high)})"


def _sharing(pairs: Sequence[Pair], fair: Sequence[Pair]) -> list[str]:
    if not fair:
        return ["Ranks shared cores (oversubscribed), and a machine that has enough may differ"]
    shared = [case.ranks for pair in pairs if pair.oversubscribed for case in (pair.before, pair.after)]
    return [f"{_ranks(shared)} shared cores (oversubscribed) and {'is' if {*shared} == {1} else 'are'} left aside"] if shared else []


def _unexplained(pair: Pair, comparison: Comparison, sides: str, where: str) -> Iterator[str]:
    """What could change, and what else did."""
    phases = phases_changed_by(comparison.settings)
    own, *_ = changes_of(pair.before, pair.after, phases)
    rest = [_told(change) for change in changes_of(pair.before, pair.after, [name for name in PHASES if name not in phases])]
    total = f"{seconds(pair.before.median('total_s'))} → {seconds(pair.after.median('total_s'))}{f' ({rest[0]})' if rest else ''}"
    yield f"{sides}: {_told(own)} {where}\n{_told(own)} {where}"
    share = explained(pair.before, pair.after, comparison.settings)
    if share > 1:
        yield f"The total changed by less, {total}"
        return
    explains = f"explains {percent(share)} of" if share >= _LEAST_EXPLAINED else "does not explain"
    yield f"That {explains} the change of the total, {total}"


def _told(change: Change, how: str = "") -> str:
    return f"{PHASES[change.phase]}{how} {seconds(change.before_s)} → {seconds(change.after_s)}"
