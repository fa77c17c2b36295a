"""Cases: results of one configuration, repeated or with other seeds, with median and spread. Series of them along an axis."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.observe.machine_time import why_busy
from farandole.results.numbers import count, plain
from farandole.results.reading import Study
from farandole.results.schema import BUSY, OVERSUBSCRIBED, PROVENANCES, Result

__all__ = [
    "EMULATED", "Axis", "Case", "Series", "as_word", "axis_of", "cases_of", "described", "is_emulated", "is_reading", "judged_on", "label_of",
    "main_time", "metric_of", "quality_of", "run_once", "said_by_another", "series_of", "unknown_in", "varying",
    "why_busy_in", "word_for",
]  # fmt: skip

_ALONG = {
    "strong": ("ranks",),
    "weak": ("ranks",),
    "batch": ("batch_size", "global_batch", "batch_scaling"),
    "lr": ("rate", "learning_rate", "lr_scaling"),
    "loaders": ("loader",),
}
EMULATED = "emulate_ranks"
_NEVER_A_SERIES = frozenset({"seed", "repeat"})
_SAID_BY = {"ranks": ("nodes",), "file": ("role", "path", "bytes"), "path": ("role", "bytes", "mtime_ns", "inode")}
_TIMES = (("total_s", "Time"), ("train_s", "Training time"), ("epoch_s", "Time of an epoch"), ("load_s", "Loading time"))
_QUALITIES = (
    ("test_accuracy", "test {metric}"),
    ("accuracy", "training {metric}"),
    ("test_loss", "test loss"),
    ("loss", "training loss"),
)
_OF_SEEDS = frozenset({"loss", "accuracy", "test_loss", "test_accuracy", "sign_accuracy", "test_sign_accuracy"})
"""Measures of the model: a run that is repeated with the same seed repeats them, and says nothing of how they vary."""
_WORDS = {
    "batch_size": "batch size",
    "rate": "learning rate",
    "emulate_ranks": "emulated ranks",
    "lr_scaling": "rate scaling",
}


@dataclass(kw_only=True, slots=True)
class Case:
    """A configuration: the results that finished and those that did not."""

    settings: dict[str, Any]
    """With the seed where all have the same."""
    results: list[Result] = field(default_factory=list)
    failed: list[Result] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        return int(self.settings.get("ranks") or 1)

    @property
    def trained_as(self) -> int:
        """The ranks whose accuracy this is: emulated ones count."""
        return int(self.settings.get(EMULATED) or self.ranks)

    @property
    def runs(self) -> int:
        """That have ended well; an imported median may be of several."""
        return sum(result.runs for result in self.results)

    @property
    def summed_up(self) -> bool:
        """Whether medians of several runs were made where they come from."""
        return any(result.runs > 1 for result in self.results)

    @property
    def marks(self) -> list[str]:
        found = [mark for result in self.results for mark in result.marks]
        return list(dict.fromkeys([*found, BUSY] if why_busy_in([self]) else found))

    @property
    def oversubscribed(self) -> bool:
        """Ranks that had to share cores: their times say nothing of a machine that has enough."""
        return OVERSUBSCRIBED in self.marks

    @property
    def imported(self) -> bool:
        """Somebody else's numbers: of how many runs they are may not be known."""
        return "imported" in self.marks

    @property
    def metric(self) -> str:
        return next((str(one.measures["metric"]) for one in self.results if one.measures.get("metric")), "accuracy")

    @property
    def provenances(self) -> set[str]:
        """How the watts and joules of its repeats are known."""
        return {str(result.measures.get("power_provenance") or "none") for result in self.results}

    @property
    def provenance(self) -> str:
        """As weak as the weakest of the repeats that have power: medians are theirs."""
        return next((kind for kind in PROVENANCES if kind in self.provenances), "none")

    @property
    def modelled(self) -> bool:
        return self.provenance == "modelled"

    def values(self, measure: str) -> list[float]:
        return [value for result in self.results if (value := result.measure(measure)) is not None]

    def repeats(self, measure: str) -> list[float]:
        """Values that can tell how far it varies: of what the model has learned one for each seed that is known, else one for each run."""
        if self.summed_up:
            return []
        if measure not in _OF_SEEDS or not any("seed" in result.settings for result in self.results):
            return self.values(measure)
        seeds: dict[Any, list[float]] = {}
        for result in self.results:
            if (value := result.measure(measure)) is not None:
                seeds.setdefault(result.settings.get("seed"), []).append(value)
        return [statistics.median(values) for values in seeds.values()]

    def known(self, measure: str) -> int:
        """In how many of its runs."""
        return sum(self._told(result, measure)[2] for result in self.results if result.measure(measure) is not None)

    def partly(self, measure: str) -> str:
        """Of how many of its runs a median is, such as `1 of 3`; empty where it is of all, or there is none."""
        known = self.known(measure)
        return f"{known} of {self.runs}" if 0 < known < self.runs else ""

    def median(self, measure: str) -> float | None:
        values = self.values(measure)
        return statistics.median(values) if values else None

    def spread(self, measure: str) -> tuple[float, float] | None:
        """From the least to the most, of two runs or more; None where that is not told."""
        found = [self._told(result, measure) for result in self.results if result.measure(measure) is not None]
        lows, highs = [low for low, _, _ in found if low is not None], [high for _, high, _ in found if high is not None]
        if sum(runs for _, _, runs in found) < 2 or len(lows) < len(found) or len(highs) < len(found):
            return None
        return min(lows), max(highs)

    def _told(self, result: Result, measure: str) -> tuple[float | None, float | None, int]:
        value = result.measure(measure)
        low, high, runs = result.spreads.get(measure) or ((None, None, result.runs) if result.runs > 1 else (value, value, 1))
        return low, high, runs


@dataclass(kw_only=True, slots=True, frozen=True)
class Axis:
    """The setting a study varies."""

    name: str
    label: str
    numeric: bool


@dataclass(kw_only=True, slots=True)
class Series:
    """Cases that differ along the axis alone."""

    label: str
    settings: dict[str, Any]
    """What tells this series from the others."""
    cases: list[Case]

    def at(self, axis: Axis) -> list[tuple[float, Case]]:
        return [(float(case.settings[axis.name]), case) for case in self.cases]


def cases_of(study: Study) -> list[Case]:
    """In the order of the plan; seeds and repeats of one configuration are one case."""
    found: dict[str, Case] = {}
    for result in study.results:
        settings = {name: value for name, value in result.settings.items() if name != "seed"}
        case = found.setdefault(repr(sorted(settings.items(), key=str)), Case(settings=settings))
        (case.results if result.ok else case.failed).append(result)
    for case in found.values():
        seeds = {result.settings.get("seed") for result in (*case.results, *case.failed)}
        if len(seeds) == 1 and seeds != {None}:
            case.settings["seed"] = seeds.pop()
    return list(found.values())


def axis_of(kind: str, cases: Sequence[Case]) -> Axis:
    """What the kind of study varies, where it does, else the setting with most values."""
    values = _values(cases)
    wanted = [name for name in _ALONG.get(kind, ()) if len(values.get(name, ())) > 1]
    if "ranks" in _ALONG.get(kind, ()) and len(values.get(EMULATED, ())) > 1:
        wanted = [EMULATED]  # on however many ranks that is done
    varied = sorted(
        (name for name in values if name not in (*_NEVER_A_SERIES, "data") and len(values[name]) > 1),
        key=lambda name: (name != "ranks", -len(values[name])),
    )
    name = next(iter([*wanted, *varied]), "ranks")
    return Axis(name=name, label=word_for(name), numeric=all(_is_number(value) for value in values.get(name, {1})))


def series_of(cases: Sequence[Case], axis: Axis) -> list[Series]:
    """The most complete first, of these the fastest; files in the order of the plan. What follows from the axis does not part series."""
    parting = [name for name in _values(cases) if _parts(cases, axis.name, name)]
    found: dict[str, Series] = {}
    for case in cases:
        if not case.results or case.settings.get(axis.name) is None:
            continue
        settings = {name: case.settings.get(name) for name in parting}
        found.setdefault(repr(settings), Series(label=label_of(settings), settings=settings, cases=[])).cases.append(case)
    for series in found.values():
        series.cases.sort(key=lambda case: (case.settings[axis.name] if axis.numeric else 0))
    return sorted(found.values(), key=lambda series: (-len(series.cases), 0.0 if is_reading(cases) else series.cases[-1].median("total_s") or 0.0))


def main_time(cases: Sequence[Case]) -> tuple[str, str] | None:
    """The measure that says best how long runs took, and the words for it: others' tables may lack totals."""
    times = reversed(_TIMES) if is_reading(cases) else _TIMES
    return next((found for found in times if any(case.median(found[0]) for case in cases)), None)


def is_reading(cases: Sequence[Case]) -> bool:
    """Whether they read files and do nothing else: the total of such a program is mostly its start."""
    return any(case.values("mb_per_s") for case in cases) and not any(case.values("train_s") for case in cases)


def said_by_another(name: str, cases: Sequence[Case]) -> bool:
    """What follows from the name of a file; and which data it is, unless cases are alike but for it."""
    if name == "data":
        others = [{key: value for key, value in case.settings.items() if key not in ("data", "seed")} for case in cases]
        return len({repr(one) for one in others}) == len(others)
    return any(name in names and _follows(name, given, cases) for given, names in _SAID_BY.items())


def _follows(name: str, given: str, cases: Sequence[Case]) -> bool:
    """Whether each value of one setting goes with one of the other."""
    values = {(repr(case.settings.get(given)), repr(case.settings.get(name))) for case in cases}
    return all(given in case.settings for case in cases) and len(values) == len({value for value, _ in values})


def quality_of(cases: Sequence[Case]) -> tuple[str, str] | None:
    """The measure that says best how good the models are, and its name."""
    for measure, words in _QUALITIES:
        if any(case.values(measure) for case in cases):
            return measure, words.format(metric=metric_of(cases))
    return None


def judged_on(cases: Sequence[Case], of: str = "accuracy: ") -> list[str]:
    """What to know of their accuracies: where the test data has steered the training."""
    told = dict.fromkeys(str(words) for case in cases for one in case.results if (words := one.measures.get("validation")))
    return [f"{of}{words}" for words in told]


def run_once(cases: Sequence[Case]) -> str:
    """A sentence where no case has repeats; empty where one has."""
    if any(case.runs > 1 for case in cases):
        return ""
    if all(case.imported for case in cases):
        return "As imported."
    return "One run." if len(cases) == 1 else "One run each."


def unknown_in(cases: Sequence[Case], measure: str) -> str:
    """In how many of their runs it is not known, such as `2 of 6 runs`; empty where all know it, or none does."""
    runs, known = sum(case.runs for case in cases), sum(case.known(measure) for case in cases)
    return f"{runs - known} of {runs} runs" if 0 < known < runs else ""


def why_busy_in(cases: Sequence[Case]) -> list[str]:
    """What speaks against the quietness of the machine while their runs lasted, the worst of each; empty where it was quiet."""
    shares = ("others_share", "steal_share", "steps_spread")
    busy = [result for case in cases for result in case.results if why_busy(*map(result.measure, shares))]
    return why_busy(*(max((value for result in busy if (value := result.measure(name)) is not None), default=None) for name in shares))


def is_emulated(cases: Sequence[Case]) -> bool:
    """Whether ranks stand for more of them: their seconds and joules are then those of emulating."""
    return any(case.settings.get(EMULATED) for case in cases)


def metric_of(cases: Sequence[Case]) -> str:
    """What `accuracy` is: some benchmarks have a correlation or R2 there."""
    return next((case.metric for case in cases if case.metric != "accuracy"), "accuracy").replace("_", " ")


def varying(settings: Iterable[dict[str, Any]]) -> list[str]:
    """The names of settings that differ."""
    found = list(settings)
    names = dict.fromkeys(name for one in found for name in one)
    return [name for name in names if len({repr(one.get(name)) for one in found}) > 1]


def described(settings: dict[str, Any], names: Iterable[str]) -> str:
    """For people: `2 ranks, batch_size=40`."""
    ranks = settings.get("ranks", 1)
    told = [f"{name}={settings.get(name)}" for name in names if name not in ("ranks", "nodes", "command")]
    return ", ".join([f"{ranks} rank{'s' * (ranks > 1)}", *told])


def label_of(settings: dict[str, Any]) -> str:
    return ", ".join(_setting(name, value) for name, value in settings.items())


def word_for(name: str) -> str:
    """A setting's name, for people."""
    return _WORDS.get(name, name.replace("_", " "))


def as_word(value: Any) -> str:
    """A setting's value, for people."""
    return plain(value) if _is_number(value) else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _setting(name: str, value: Any) -> str:
    if name == "ranks":
        return count(int(value), "rank")
    return str(value) if name in ("benchmark", "loader", "state", "file") else f"{word_for(name)} {as_word(value)}"


def _values(cases: Iterable[Case]) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for case in cases:
        for name, value in case.settings.items():
            found.setdefault(name, set()).add(value if isinstance(value, (int, float, str)) else repr(value))
    return found


def _parts(cases: Sequence[Case], axis: str, name: str) -> bool:
    if name == axis or name in _NEVER_A_SERIES or said_by_another(name, cases):
        return False
    seen: dict[Any, set[str]] = {}
    for case in cases:
        seen.setdefault(repr(case.settings.get(axis)), set()).add(repr(case.settings.get(name)))
    return any(len(values) > 1 for values in seen.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
