"""A study of loaders is a study: the same table, verdict and page, of what reading took."""

import csv
import io
import json
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.report import write_report
from farandole.results.analysis import analyse_study, table_text
from studyfolder import Shape, changed, make_loaders, make_study


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_text(analyse_study(folder), "csv"))))


def test_the_fastest_is_told_of_the_first_file_and_then_of_the_others(tmp_path: Path) -> None:
    found = analyse_study(make_loaders(tmp_path))
    (verdict,) = found.verdicts()
    assert verdict.headline.startswith("With 1 rank, nt_train2.csv, cold, fastest with loader fast-cached: loading time 241\u202fms, 46.2× as fast as polars")
    assert any(caveat.startswith("With 2 ranks, nt_train2.csv, cold, fastest with ") for caveat in verdict.caveats)
    assert "ower" not in str(verdict), "which no reading has"
    assert "/data/" not in str(verdict), "a file is told by its name"


def test_what_a_process_took_to_start_is_no_part_of_reading(tmp_path: Path) -> None:
    folder = make_loaders(tmp_path, loaders=("pandas", "fast"))
    before = analyse_study(folder).verdict()
    changed(folder, lambda line: line["figures"].update(total_s=90.0 if line["settings"]["loader"] == "fast" else 3.0))
    assert str(analyse_study(folder).verdict()) == str(before)
    assert {row["speedup"][:5] for row in rows(folder) if row["loader"] == "fast"} == {"7.058"}, "600 / 85 MB/s, against pandas"


def test_readings_have_columns_of_their_own(tmp_path: Path) -> None:
    table = analyse_study(make_loaders(tmp_path, benchmarks=("nt3", "p1b2"))).table()
    assert [str(heading) for heading in table.headings] == [
        "loader", "ranks", "benchmark", "file", "state", "load s", "speedup", "read MB/s", "peak bytes", "held bytes", "runs",
    ]  # fmt: skip
    assert len(table.rows) == 2 * 3 * 6 * 2
    runs = analyse_study(make_study(tmp_path / "runs", Shape(trace=False))).table()
    assert not {"peak", "held", "read"} & {heading.name for heading in runs.headings}


def test_one_reading_each_claims_no_fastest(tmp_path: Path) -> None:
    verdict = analyse_study(make_loaders(tmp_path, loaders=("pandas", "fast"), repeats=1)).verdict()
    assert "fastest" not in str(verdict) and verdict.headline.endswith("with pandas: too few repeats to tell.")


def test_a_reading_has_its_state_as_a_setting(tmp_path: Path) -> None:
    """Cold and warm readings are never repeats of each other."""
    found = analyse_study(make_loaders(tmp_path, loaders=("pandas", "fast")))
    assert (len(found.cases), {case.runs for case in found.cases}) == (3 * 2 * 2, {3})
    assert (found.axis.name, found.variants()) == ("loader", None)


def test_the_page_has_bars_of_every_reading_and_no_power(tmp_path: Path) -> None:
    text = write_report(make_loaders(tmp_path, benchmarks=("nt3", "p1b2"))).read_text()
    assert '<h2>Loading time by loader</h2>' in text and "<svg" in text.split('id="figure-time"')[1].split("</figure>")[0]
    for what in ("<dt>power</dt>", "<dt>clock error</dt>", "<dt>threads</dt>", "figure-energy", "figure-heat", "figure-timeline"):
        assert what not in text, "readings have none"
    assert text.split('id="results"')[1].split("<tbody>")[1].split("</table>")[0].count("<tr") == 2 * 3 * 6 * 2
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["about"]["kind"] == "loaders" and len(data["results"]) == 2 * 3 * 6 * 2 * 3


def test_what_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    folder = make_loaders(tmp_path / "one", failing=("polars",))
    text = write_report(folder).read_text()
    assert "Failed: polars ran out of memory" in text and "18 of 108" in text and text.count("3 failed</span>") == 6
    assert "3 failed" in table_text(analyse_study(folder), "text") and {row["failed"] for row in rows(folder) if row["loader"] == "polars"} == {"3"}
    everything = make_loaders(tmp_path / "all", loaders=("polars",), failing=("polars",))
    assert str(analyse_study(everything).verdict()) == "No run has finished: polars ran out of memory."
    assert "<svg" not in write_report(everything).read_text()


def test_a_busy_machine_is_told(tmp_path: Path) -> None:
    folder = changed(make_loaders(tmp_path), lambda line: line["figures"].update(others_share=0.4))
    assert analyse_study(folder).verdict().caveats[-1] == "Measured on a busy machine: other programs took 40% of its processor time."
    assert "busy machine: 1, 2 ranks (other programs took 40%" in table_text(analyse_study(folder), "text")


def test_two_studies_of_loaders_are_compared(tmp_path: Path) -> None:
    before, after = (make_loaders(tmp_path / name, loaders=("pandas", "fast")) for name in ("before", "after"))
    changed(after, lambda line: line["figures"].update(load_s=line["figures"]["load_s"] / 2))
    text = write_report(before, after).read_text()
    assert "50% less loading time" in text.split('class="verdict">')[1].split("</p>")[0]
    table = text.split('id="comparison"')[1].split("</table>")[0]
    assert table.count("<tr") == 1 + 3 * 2 * 2 and table.count("−50%") >= 12 and "total" not in table
    assert all(f'id="figure-{name}"' in text for name in ("time", "time-after")) and 'id="figure-compare"' not in text


def test_loaders_and_runs_do_not_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_study(tmp_path / "runs", Shape(ranks=(1,), repeats=1, trace=False))
    loaders = make_loaders(tmp_path / "loaders", loaders=("pandas",), repeats=1)
    for before, after in ((loaders, runs), (runs, loaders)):
        assert main(["report", str(before), str(after)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "only one is a study of loaders" in line and line.endswith(f"type: farandole report {before}")
    assert not list(tmp_path.rglob("report.html"))
