"""Everything that tables, verdicts and pages draw from one study, made once: cases, series, scalings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from farandole.results.cases import Axis, Case, Series, axis_of, cases_of, is_emulated, is_reading, series_of
from farandole.results.comparing import Comparison, compare_series, compare_studies
from farandole.results.formats import as_latex, as_markdown, as_text, check_format
from farandole.results.reading import Study, read_folder
from farandole.results.scaling import Scaling, scalings_of
from farandole.results.table import Table, cases_csv, results_table
from farandole.results.verdict import Verdict, comparison_verdict, run_verdict, study_verdict

__all__ = ["Analysis", "analyse_study", "compare_analyses", "table_text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A study in cases."""

    study: Study
    cases: list[Case]
    axis: Axis
    series: list[Series]
    scalings: list[list[Scaling]]
    """Of every series; empty where there is nothing to compare with."""

    @property
    def all_scalings(self) -> list[Scaling]:
        return [one for found in self.scalings for one in found]

    @property
    def first_scalings(self) -> list[Scaling]:
        return self.scalings[0] if self.scalings else []

    @property
    def is_emulated(self) -> bool:
        return is_emulated(self.cases)

    def table(self) -> Table:
        return results_table(self.study, self.cases, self.series, self.axis, self.all_scalings)

    def verdict(self) -> Verdict:
        if self.study.is_run:
            return run_verdict(self.study)
        return study_verdict(self.study, self.series, self.axis, self.first_scalings)

    def variants(self) -> Comparison | None:
        """Of one study that varies, say, the loader of a run: its base against the quickest other."""
        if self.study.is_run or self.is_emulated or is_reading(self.cases):
            return None
        return compare_series(self.series, self.axis, self.study.about.get("base") or {})

    def verdicts(self) -> list[Verdict]:
        """What is of variants comes first."""
        variants = self.variants()
        return [*([comparison_verdict(variants)] if variants is not None else []), self.verdict()]


def analyse_study(study: Study | Path) -> Analysis:
    study = read_folder(study) if isinstance(study, Path) else study
    cases = cases_of(study)
    axis = axis_of(study.kind, cases)
    series = series_of(cases, axis)
    scalings = [] if study.is_run else scalings_of(study.work, series, axis, study.about.get("base") or {})
    return Analysis(study=study, cases=cases, axis=axis, series=series, scalings=scalings)


def compare_analyses(before: Analysis, after: Analysis) -> Comparison | None:
    """None of emulated ranks, whose seconds are those of emulating."""
    if before.is_emulated:
        return None
    return compare_studies((before.study, before.cases), (after.study, after.cases), before.axis)


def table_text(analysis: Analysis, form: str) -> str:
    """In one of FORMATS."""
    check_format(form)
    if form == "csv":
        return cases_csv(analysis.cases, analysis.all_scalings)
    return {"text": as_text, "markdown": as_markdown, "latex": as_latex}[form](analysis.table())
