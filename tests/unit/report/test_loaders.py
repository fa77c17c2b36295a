"""The page of a study of loaders: a verdict against pandas, bars, every reading, and what went wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.errors import SettingsError
from farandole.report import write_page
from studyfolder import Shape, make_loaders, make_study


def change(folder: Path, **more: Any) -> None:
    """Figures of every reading, by `loader_state`."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        name = f"{line['settings']['loader']}_{line['settings']['state']}"
        line["figures"]["load_s"] = more.get(name, line["figures"].get("load_s"))
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_page_says_who_is_faster_than_pandas_and_shows_it(tmp_path: Path) -> None:
    page = write_page(make_loaders(tmp_path, benchmarks=("nt3", "p1b2")))
    first, rest = page.verdict.split(". Of each benchmark ")
    assert first == (
        "NT3: fast is 7.06x as fast as pandas cold (1.21 s instead of 8.51 s) and 7.06x warm; "
        "P1B2: fast is 7.06x as fast as pandas cold (330 ms instead of 2.33 s) and 7.06x warm"
    )
    assert rest.startswith("the largest file, read by one process; from the cache of a reading before, NT3 takes 241 ms cold (35.3x)")
    text = page.path.read_text()
    for figure in ("nt3-cold", "nt3-warm", "nt3-cold-at-once", "nt3-warm-at-once", "p1b2-cold"):
        assert "<svg" in text.split(f'id="figure-{figure}"')[1].split("</figure>")[0]
    assert text.count("<tr") == 1 + 2 * 3 * 6 * 2
    for told in ("cold and warm", "Example 9000 Processor", "2026-03-02", "farandole study loaders nt3 p1b2", "loader pandas", "4.50\u202fs, once"):
        assert told in text
    assert not re.search(r"(src|href|url)\s*[=(]", text)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)[0])
    assert data["about"]["kind"] == "loaders" and len(data["results"]) == 2 * 3 * 6 * 2 * 3


def test_a_difference_that_readings_cannot_tell_is_none(tmp_path: Path) -> None:
    folder = make_loaders(tmp_path, loaders=("pandas", "fast"), repeats=1)
    change(folder, pandas_cold=1.0, fast_cold=0.99, pandas_warm=1.0, fast_warm=2.0)
    verdict = write_page(folder).verdict
    assert "no loader is faster than pandas cold that these readings could tell" in verdict
    assert "no loader is faster than pandas warm (1.00 s)" in verdict
    assert "each was read once" in verdict


def test_without_pandas_the_fastest_is_named(tmp_path: Path) -> None:
    verdict = write_page(make_loaders(tmp_path, loaders=("polars", "fast"))).verdict
    assert verdict.startswith("NT3: fast is the fastest cold (1.21 s) and warm (1.00 s). ")
    assert "pandas was not measured" in verdict


def test_what_failed_is_shown_with_its_reason(tmp_path: Path) -> None:
    text = write_page(make_loaders(tmp_path, failing=("polars",))).path.read_text()
    assert "Failed: nt3 train, polars, 2 at once: polars ran out of memory" in text
    assert "Failed, and not drawn: polars." in text
    assert "18 of 108" in text and text.count("3 failed") >= 6
    everything = write_page(make_loaders(tmp_path, loaders=("polars",), failing=("polars",)))
    assert everything.verdict == "No file has been read: polars ran out of memory."
    assert "<svg" not in everything.path.read_text()


def test_a_study_without_results_is_a_page(tmp_path: Path) -> None:
    (make_loaders(tmp_path) / "results.jsonl").unlink()
    page = write_page(tmp_path)
    assert page.verdict == "No file has been read."
    assert "no run has ended" in page.path.read_text()


def test_a_line_that_was_cut_is_left_out_and_said(tmp_path: Path) -> None:
    results = make_loaders(tmp_path) / "results.jsonl"
    results.write_text(results.read_text()[:-40])
    text = write_page(tmp_path).path.read_text()
    assert "its last line was cut off and is left out" in text and "1 to come" in text


def test_loaders_are_compared_with_no_other_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaders, runs = make_loaders(tmp_path / "loaders", repeats=1), make_study(tmp_path / "runs", Shape(ranks=(1,), repeats=1, trace=False))
    for pair in ((loaders, runs), (runs, loaders), (loaders, loaders)):
        with pytest.raises(SettingsError, match=f"study loaders NAME .*--out {loaders}.*study table DIR --format csv.* type: farandole report {loaders}$"):
            write_page(*pair)
    assert main(["report", str(runs), str(loaders)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.rglob("report.html"))
