"""The page in one sentence: what limits whom, and how far to believe it."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.report.comparing import Comparison, Pair
from farandole.report.differences import SAME, Change, changes_of, difference, explained, phases_changed_by
from farandole.report.figures.bars import PHASES
from farandole.report.figures.quality import quality_of
from farandole.report.groups import EMULATED, Axis, Point, Series, is_emulated, measure_of, unknown_in
from farandole.report.numbers import count, number, percent, plain, seconds, times
from farandole.report.reading import Study
from farandole.report.scaling import CAUSES, Scaling
from farandole.report.trust import measured_beside

__all__ = ["EFFICIENT", "comparison_verdict", "run_verdict", "study_verdict"]

EFFICIENT = 0.8
"""From here on a rank count is called efficient."""
_LOST_ACCURACY = 0.02
_MOST_SERIES = 3
_LEAST_EXPLAINED = 0.1
"""A smaller share of a change is called none."""
_WORDS = {cause.name: cause.words for cause in CAUSES}


def study_verdict(study: Study, series: Sequence[Series], axis: Axis, scalings: Sequence[Scaling[Point]]) -> str:
    points = [point for one in series for point in one.points]
    if not study.finished:
        reasons = [attempt.reason for attempt in study.failed if attempt.reason]
        return f"No run has finished{f': {reasons[-1]}' if reasons else ''}."
    told, measures = points, [measure_of(points), quality_of(points)]
    if is_emulated(points):
        measures = measures[1:]
        clauses = _emulated(series) if axis.name == EMULATED else _best_as(series, axis)
    elif len(scalings) > 1:
        told = [one.point for one in _fair(scalings) or scalings]
        clauses = [*_scaling(scalings), *_accuracy(scalings)]
    else:
        clauses = _best(series, axis)
    return _sentence([*clauses, *_unknown(told, measures), measured_beside(told), _power(points)])


def _unknown(points: Sequence[Point], measures: Sequence[tuple[str, str] | None]) -> list[str]:
    """Of figures that a verdict tells: in how many runs they are not known, as where training has diverged."""
    told = [(words, unknown_in(points, figure)) for figure, words in filter(None, measures)]
    return [f"{words[0].lower()}{words[1:]} is not known in {runs} and told of the others" for words, runs in told if runs]


def _fair(scalings: Sequence[Scaling[Point]]) -> list[Scaling[Point]]:
    """What ranks that share cores lose says nothing of a machine that has cores for them."""
    return [one for one in scalings if not one.point.oversubscribed]


def _scaling(scalings: Sequence[Scaling[Point]]) -> list[str]:
    fair = _fair(scalings)
    shared = [one.ranks for one in scalings if one.point.oversubscribed]
    alone = "Training alone: " if scalings[0].training_only else ""
    first, *rest = _limit(fair) if len(fair) > 1 else [_alone(fair)]
    clauses = [f"{alone}{first[0].lower()}{first[1:]}" if alone else first, *rest]
    if shared:
        clauses.append(f"{_ranks(shared)} shared cores (oversubscribed) and {'says' if shared == [1] else 'say'} nothing of scaling")
    return clauses


def _alone(fair: Sequence[Scaling[Point]]) -> str:
    if not fair:
        return "No run had a core for every rank"
    return f"Only the run on {count(fair[0].ranks, 'rank')} had a core for {'each' if fair[0].ranks > 1 else 'it'}"


def _limit(scalings: Sequence[Scaling[Point]]) -> list[str]:
    good = scalings[0]
    for one in scalings[1:]:
        if one.efficiency < EFFICIENT:
            break
        good = one
    beyond = [one for one in scalings if one.ranks > good.ranks]
    if not beyond:
        worst = next((cause for cause, share in good.losses.items() if share >= 0.02), None)
        clause = f"Efficient to {count(good.ranks, 'rank')}, the most that were run ({percent(good.efficiency)})"
        return [clause, f"the largest loss is {_WORDS[worst]} ({percent(good.losses[worst])})"] if worst else [clause]
    last = beyond[-1]
    cause = next(iter(last.losses), None)
    if good is scalings[0]:
        clause = f"Not efficient beyond {count(good.ranks, 'rank')}: {_below(beyond[0].efficiency)} on {beyond[0].ranks}"
        told = [] if cause is None else [f"{_WORDS[cause]} costs most ({percent(last.losses[cause])} of the time on {last.ranks})"]
        return [clause, *told]
    return [f"Efficient to {count(good.ranks, 'rank')} ({percent(good.efficiency)})"] + (
        [] if cause is None else [f"beyond that {_WORDS[cause]} dominates ({percent(last.losses[cause])} of the time on {last.ranks})"]
    )


def _below(efficiency: float) -> str:
    """In percent, and never rounded up to what would be efficient."""
    return percent(min(efficiency, EFFICIENT - 0.01) if round(efficiency, 2) >= EFFICIENT else efficiency)


def _ranks(ranks: Sequence[int]) -> str:
    *first, last = sorted(set(ranks))
    told = f"{', '.join(map(str, first))} and {last}" if first else str(last)
    return f"{told} rank{'' if told == '1' else 's'}"


def _accuracy(scalings: Sequence[Scaling[Point]]) -> list[str]:
    """Speed that is paid for with accuracy is no speed: said where it falls."""
    found = quality_of([one.point for one in scalings])
    if found is None or "accuracy" not in found[0]:
        return []
    known = [(one.ranks, value) for one in scalings if (value := one.point.median(found[0])) is not None]
    if len(known) < 2:
        return []
    first, worst = known[0][1], min(known[1:], key=lambda one: one[1])
    if worst[1] < first - _LOST_ACCURACY:
        return [f"{found[1]} falls from {first:.2f} to {worst[1]:.2f} on {worst[0]}"]
    return []


def _emulated(series: Sequence[Series]) -> list[str]:
    """How far accuracy holds: all that ranks which one stands for can say."""
    found = quality_of([point for one in series for point in one.points])
    if found is None or "accuracy" not in found[0]:
        return ["Ranks are emulated, and no run has an accuracy"]
    told = [clause for one in series if (clause := _held(one, found[0]))]
    more = len(told) - _MOST_SERIES
    return [f"{found[1]} {told[0]}" if told else f"{found[1]} is of one number of ranks only", *told[1:_MOST_SERIES]] + (
        [f"{more} more in the table"] if more > 0 else []
    )


def _best_as(series: Sequence[Series], axis: Axis) -> list[str]:
    """Of emulated ranks where something else is varied."""
    points = [point for one in series for point in one.points]
    found = quality_of(points)
    if found is None or "accuracy" not in found[0]:
        return ["Ranks are emulated, and no run has an accuracy"]
    known = sorted(((value, point) for point in points if (value := point.median(found[0])) is not None), key=lambda one: -one[0])
    (best, where), (worst, elsewhere) = known[0], known[-1]
    ranks = _ranks([point.trained_as for _, point in known])
    told = f"{found[1]} is {best:.2f} with {axis.label} {_named(where, axis, series)}"
    more = "" if len(known) == 1 else f" and {worst:.2f} with {_named(elsewhere, axis, series)}"
    return [f"Trained as {ranks}, {told}{more}"]


def _held(series: Series, figure: str) -> str:
    known = sorted((point.trained_as, value) for point in series.points if (value := point.median(figure)) is not None)
    if len(known) < 2:
        return ""
    first = known[0][1]
    held = [one for one in known if one[1] >= first - _LOST_ACCURACY]
    # The last before it falls for the first time.
    lost = next((one for one in known if one not in held), None)
    good = known[-1] if lost is None else known[known.index(lost) - 1]
    label = f" with {series.label}" if series.label else ""
    clause = f"holds to {count(good[0], 'rank')}{label} ({good[1]:.2f})"
    if lost is None:
        return clause
    return clause + f" and is {lost[1]:.2f} on {lost[0]}" + ("" if lost is known[-1] else f", {known[-1][1]:.2f} on {known[-1][0]}")


def _best(series: Sequence[Series], axis: Axis) -> list[str]:
    measure = measure_of([point for one in series for point in one.points])
    if measure is None:
        return ["Runs finished, but none says how long it took"]
    figure, words = measure
    points = [point for one in series for point in one.points if point.median(figure)]
    if len(points) == 1:
        return [f"One configuration: {words.lower()} {seconds(points[0].median(figure))} on {count(points[0].ranks, 'rank')}"]
    quick = min(points, key=lambda point: point.median(figure) or 0.0)
    # Against what differs along the axis alone: on other ranks, say, times differ for other reasons.
    slow = max(_of_same_series(quick, series), key=lambda point: point.median(figure) or 0.0)
    told = f"{'' if figure == 'total_s' else words.lower() + ' '}{seconds(quick.median(figure))}"
    than = "" if slow is quick else f", {_than(quick, slow, figure, axis)}"
    clauses = [f"Fastest with {axis.label} {_named(quick, axis, series)}: {told}{than}"]
    found = quality_of(points)
    if found is not None:
        by = (lambda point: -(point.median(found[0]) or 0.0)) if "accuracy" in found[0] else (
            lambda point: point.median(found[0]) or 0.0
        )  # fmt: skip
        best = min((point for point in points if point.median(found[0]) is not None), key=by)
        clauses.append(f"best {found[1]} with {_named(best, axis, series)}: {number(best.median(found[0]))}")
    return clauses


def _than(quick: Point, slow: Point, figure: str, axis: Axis) -> str:
    kind, name, slow_s = difference(slow, quick, figure, [axis.name]), _value(slow, axis), slow.median(figure) or 0.0
    if kind == "told":
        return f"{times(slow_s / (quick.median(figure) or 1.0))} as fast as {name}"
    if kind == "unexplained":
        change, *_ = changes_of(slow, quick, phases_changed_by([axis.name]))
        phase = PHASES[change.phase]
        return f"which {phase} ({seconds(change.after_s)}) does not explain beside {name} ({seconds(slow_s)}, {phase} {seconds(change.before_s)})"
    return f"no difference from {name} ({seconds(slow_s)}) that these runs could tell"


def _of_same_series(point: Point, series: Sequence[Series]) -> list[Point]:
    return next(one.points for one in series if any(other is point for other in one.points))


def _named(point: Point, axis: Axis, series: Sequence[Series]) -> str:
    """Its value on the axis, and where there are several series, which of them it is in."""
    label = next(one.label for one in series if any(other is point for other in one.points))
    return _value(point, axis) + (f" ({label})" if len(series) > 1 and label else "")


def _value(point: Point, axis: Axis) -> str:
    value = point.settings.get(axis.name)
    return plain(value) if isinstance(value, (int, float)) else str(value)


def _power(points: Sequence[Point]) -> str:
    kinds = {kind for point in points for kind in point.provenances}
    if "modelled" in kinds:
        return "power modelled, not measured"
    if kinds <= {"none"}:
        return "power not known"
    return "power measured" + (" in part of the runs" if "none" in kinds else "")


def run_verdict(study: Study) -> str:
    attempt = study.attempts[0]
    total = attempt.figure("total_s")
    phases = sorted(
        ((seconds_s, words) for name, words in PHASES.items() if (seconds_s := attempt.figure(f"{name}_s"))), reverse=True
    )
    ranks = int(attempt.settings.get("ranks") or 1)
    epochs = attempt.figure("epochs")
    trained = f" for {count(int(epochs), 'epoch')}" if epochs else ""
    clauses = [f"{count(ranks, 'rank')} trained{trained} in {seconds(total)}"]
    if phases and total:
        told = [f"{words} took {percent(part_s / total)}" for part_s, words in phases[:2]]
        clauses.append(" and ".join(told) + " of it")
    found = quality_of([Point(settings={}, attempts=[attempt])])
    if found:
        clauses.append(f"{found[1]} {number(attempt.figure(found[0]))}")
    return _sentence([*clauses, _power([Point(settings={}, attempts=[attempt])])])


def comparison_verdict(comparison: Comparison) -> str:
    """At the far end of the axis, where it matters most, as far as ranks had cores of their own."""
    pairs = [pair for pair in comparison.pairs if pair.saved("total_s") is not None]
    if not pairs:
        return f"{comparison.before} and {comparison.after} have no finished configuration in common."
    pairs = [pair for pair in pairs if pair.label == pairs[0].label]
    fair = [pair for pair in pairs if not pair.oversubscribed]
    pair = (fair or pairs)[-1]
    where = comparison.where(pair) + (f", {pair.label}" if pair.label else "")
    clauses = [*_time(pair, comparison, where), *_once(pair, comparison), *_sharing(pairs, fair), *_energy(pair, comparison)]
    told, joules = [pair.before, pair.after], pair.saved("energy_j") is not None and not pair.energy_caveat
    clauses += [*_unknown(told, [("total_s", "time"), ("energy_j", "energy") if joules else None]), measured_beside(told)]
    return _sentence(clauses, as_it_is=comparison.of_folders)


def _time(pair: Pair, comparison: Comparison, where: str) -> list[str]:
    sides, saved = f"{comparison.after} instead of {comparison.before}", pair.saved("total_s") or 0.0
    most = [_told(change, " changed most,") for change in changes_of(pair.before, pair.after, PHASES)[:1]]
    kind = difference(pair.before, pair.after, "total_s", comparison.settings)
    if kind == "same":
        return [f"{sides}: the same time {where}, within {percent(SAME)}", *most]
    if kind == "lost":
        return [f"{sides}: no difference {where} that these runs could tell", *most]
    if kind == "unexplained":
        return _unexplained(pair, comparison, sides, where)
    return [f"{sides}: {percent(abs(saved))} {'less' if saved >= 0 else 'more'} time {where} ({times(pair.factor('total_s'))})", *most]


def _once(pair: Pair, comparison: Comparison) -> list[str]:
    single = [name for name, point in ((comparison.before, pair.before), (comparison.after, pair.after)) if len(point.values("total_s")) < 2]
    if len(single) == 1:
        return [f"one run of {single[0]}: how far it would differ from others is not known"]
    return ["one run each: how far runs differ by themselves is not known"] if single else []


def _energy(pair: Pair, comparison: Comparison) -> list[str]:
    saved = pair.saved("energy_j")
    if saved is None:
        return []
    if pair.energy_caveat:
        return [f"energy is {pair.energy_caveat} and not compared"]
    if difference(pair.before, pair.after, "total_s", comparison.settings) == "unexplained":
        return ["energy follows the time and is not compared"]
    kind = difference(pair.before, pair.after, "energy_j", comparison.settings)
    if kind == "same":
        return [f"the same energy, within {percent(SAME)}"]
    if kind == "lost":
        return ["no difference of the energy that these runs could tell"]
    return [f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} energy"]


def _sharing(pairs: Sequence[Pair], fair: Sequence[Pair]) -> list[str]:
    if not fair:
        return ["ranks shared cores (oversubscribed), and a machine that has enough may differ"]
    shared = [point.ranks for pair in pairs if pair.oversubscribed for point in (pair.before, pair.after)]
    return [f"{_ranks(shared)} shared cores (oversubscribed) and {'is' if {*shared} == {1} else 'are'} left aside"] if shared else []


def _unexplained(pair: Pair, comparison: Comparison, sides: str, where: str) -> list[str]:
    """What could change, and what else did."""
    phases = phases_changed_by(comparison.settings)
    own, *_ = changes_of(pair.before, pair.after, phases)
    rest = [_told(change) for change in changes_of(pair.before, pair.after, [name for name in PHASES if name not in phases])]
    total = f"{seconds(pair.before.median('total_s'))} → {seconds(pair.after.median('total_s'))}{f' ({rest[0]})' if rest else ''}"
    share = explained(pair.before, pair.after, comparison.settings)
    if share > 1:
        return [f"{sides}: {_told(own)} {where}", f"the total changed by less, {total}"]
    explains = f"explains {percent(share)} of" if share >= _LEAST_EXPLAINED else "does not explain"
    return [f"{sides}: {_told(own)} {where}", f"that {explains} the change of the total, {total}"]


def _told(change: Change, how: str = "") -> str:
    return f"{PHASES[change.phase]}{how} {seconds(change.before_s)} → {seconds(change.after_s)}"


def _sentence(clauses: Sequence[str], *, as_it_is: bool = False) -> str:
    """`as_it_is`: its first word is a name, which no capital letter may change."""
    told = "; ".join(clause for clause in clauses if clause)
    return f"{told}." if as_it_is else f"{told[:1].upper()}{told[1:]}."
