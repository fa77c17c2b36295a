"""Tables of a study of loaders, in every form, and what makes no sense of one."""

import csv
import io
import json
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.study.formats import FORMATS
from studyfolder import make_loaders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_loaders(tmp_path_factory.mktemp("loaders"), failing=("polars",), cores=1)


def table(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["study", "table", str(folder), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "csv"])
def test_tables_for_people(folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    shown = table(folder, capsys, "--format", form).replace("\\_", "_")
    cells = [[cell.strip(" |\\") for cell in line.replace("&", "|").replace("  ", "|").split("|") if cell.strip(" |\\")] for line in shown.splitlines()]
    assert ["fast", "cold", "1.21", "1.18..1.23", "7.1x", "490", "1,182", "591"] in cells
    assert ["polars", "warm", "failed", *["-"] * 5] in cells
    assert ["nt3", "fast", "warm", "2", "1.61", "1.58..1.64", "1.6x", "7.1x", "591", "1.0x"] in cells
    for told in ("medians of 3 readings", "base case: pandas as it is by default", "failed: nt3 test, polars: polars ran out of memory"):
        assert told in " ".join(shown.split())
    assert "81.7 -> 14.3" in shown.replace("$>$", ">"), "the papers', whose file was as large"
    assert form != "text" or max(map(len, shown.splitlines())) <= 100
    assert shown.count(r"\begin{table}") == (4 if form == "latex" else 0)


def test_a_busy_machine_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make_loaders(tmp_path, repeats=1) / "results.jsonl"
    assert "busy machine" not in table(tmp_path, capsys)
    first, *rest = results.read_text().splitlines()
    line = json.loads(first)
    line |= {"marks": ["busy machine"], "figures": line["figures"] | {"others_share": 0.9}}
    results.write_text("\n".join([json.dumps(line), *rest]) + "\n")
    assert "busy machine: other programs took up to 90% of its processor time" in table(tmp_path, capsys)


def test_csv_has_every_reading_and_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(table(folder, capsys, "--format", "csv"))))
    assert len(rows) == 3 * 6 * 2
    fast = next(row for row in rows if (row["loader"], row["ranks"], row["state"]) == ("fast", "2", "cold"))
    assert float(fast["load_s_min"]) < float(fast["load_s"]) < float(fast["load_s_max"])
    assert float(fast["gain"]) == pytest.approx(600 / 85) and float(fast["load_s_x_one"]) == pytest.approx(1.6)
    assert (fast["runs"], fast["failed"], fast["rows"]) == ("3", "0", "1120.0")
    bad = next(row for row in rows if row["loader"] == "polars")
    assert (bad["runs"], bad["failed"], bad["reason"], bad["load_s"]) == ("0", "3", "polars ran out of memory", "")


def test_results_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(table(folder, capsys, "--json"))
    assert told["kind"] == "loaders" and len(told["results"]) == 3 * 6 * 2 * 3


def test_one_reading_has_no_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = table(make_loaders(tmp_path, loaders=("polars", "fast"), repeats=1), capsys)
    assert "min..max" not in shown and "each was read once: no spread is known" in shown
    assert "base case: pandas, of which there is no reading" in shown


def test_of_a_file_that_has_changed_the_last_figures_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_loaders(tmp_path, repeats=1)
    plan = json.loads((tmp_path / "study.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    # Of the new file only one loader has been measured: pandas of the old one is nothing to compare with.
    new = next(line for line in lines if line["settings"]["loader"] == "fast")
    new = {**new, "key": "new", "settings": {**new["settings"], "mtime_ns": 5, "bytes": 2_000_000}}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*lines, new]))
    plan["points"].append({name: new[name] for name in ("key", "settings", "repeat")})
    (tmp_path / "study.json").write_text(json.dumps(plan))
    rows = list(csv.DictReader(io.StringIO(table(tmp_path, capsys, "--format", "csv"))))
    assert [(row["loader"], row["bytes"], row["gain"]) for row in rows if row["role"] == "train"] == [("fast", "2000000", "")]
    assert len(rows) == 1 + 6 * 2


def test_a_line_that_was_cut_is_dropped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make_loaders(tmp_path, repeats=1) / "results.jsonl"
    results.write_text(results.read_text()[:-40])
    assert main(["study", "table", str(tmp_path), "--format", "csv"]) == 0
    told = capsys.readouterr()
    assert "the last line was cut in the middle and is dropped" in told.err and len(told.err.splitlines()) == 1
    assert len(told.out.splitlines()) == 1 + 3 * 6 * 2 - 1
    results.unlink()
    assert "no file has been read yet; type: farandole study loaders nt3 " in table(tmp_path, capsys)


@pytest.mark.parametrize("words", [["table"], ["beside", "theta-2018-table4"]])
def test_an_empty_folder_holds_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    verb, *rest = words
    assert main(["study", verb, str(tmp_path), *rest]) == 1
    assert "holds no study" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["beside", "DIR", "theta-2018-table4"],
        ["table", "DIR", "--scalars", "tensorboard"],
        ["collect", "DIR"],
        ["point", "DIR", "abc-0"],
    ],
)
def test_what_is_of_runs_alone_says_what_to_type(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["study", *(str(folder) if word == "DIR" else word for word in words)]) == 2
    said = capsys.readouterr().err
    assert f"{folder} is a study of loaders" in said and f"type: farandole study table {folder}" in said
    assert len(said.splitlines()) == 1
