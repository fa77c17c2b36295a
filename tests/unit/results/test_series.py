"""What belongs to one series, and what is told apart."""

from pathlib import Path
from typing import Any

from farandole.results.analysis import analyse_study
from farandole.results.reading import Study
from farandole.results.schema import Result
from farandole.study.importing import import_figures


def study(kind: str, *runs: tuple[dict[str, Any], dict[str, float]]) -> Study:
    results = [
        Result(key=str(at), settings=settings, repeat=at, ok=True, reason=None, run=None, marks=(), measures=measures, reasons={})
        for at, (settings, measures) in enumerate(runs)
    ]
    return Study(folder=Path(), kind=kind, title="t", command=None, about={"points": []}, results=results, tries=len(results), raw=[])


def test_as_many_ranks_on_other_nodes_are_another_series() -> None:
    """They were one, and the interval of one was told of the other."""
    times = {(1, 1): 100.0, (2, 1): 51.0, (2, 2): 90.0}
    runs = [({"ranks": ranks, "nodes": nodes}, {"total_s": time + more}) for (ranks, nodes), time in times.items() for more in (-0.1, 0.0, 0.1)]
    found = analyse_study(study("strong", *runs))
    assert [len({case.settings["nodes"] for case in one.cases}) for one in found.series] == [1] * len(found.series)
    assert "Efficient to 2 ranks" in found.verdict().headline or "efficient to 2 ranks" in found.verdict().headline


def test_files_of_one_name_are_compared_with_themselves() -> None:
    runs = [
        ({"ranks": 1, "file": "a.csv", "bytes": size, "loader": loader}, {"load_s": size / speed, "mb_per_s": speed})
        for size in (1000, 10)
        for loader, speed in (("pandas", 1.0), ("fast", 4.0))
    ]
    found = analyse_study(study("loaders", *runs))
    assert [round(one.speedup, 6) for one in found.all_scalings] == [1.0, 4.0, 1.0, 4.0]
    assert any(heading.name == "bytes" for heading in found.table().headings)


def test_imported_rows_with_other_threads_are_other_cases(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("ranks,threads,total_s\n1,8,10\n1,4,18\n2,4,11\n")
    found = analyse_study(import_figures(str(table), tmp_path / "s", None).study())
    assert [(case.ranks, case.settings["threads"], case.median("total_s")) for case in found.cases] == [(1, 8, 10), (1, 4, 18), (2, 4, 11)]
