"""Tables and verdicts of results made by hand; measures of run directories; figures from elsewhere; two studies side by side."""

import csv
import io
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.errors import DataError, SettingsError
from farandole.results.analysis import Analysis, analyse_study, table_text
from farandole.results.formats import FORMATS
from farandole.results.schema import MEASURES
from farandole.study.collecting import collect
from farandole.study.compare import compare
from farandole.study.folder import StudyFolder
from farandole.study.importing import import_figures, papers_tables
from farandole.study.measures import energy_measures, measures_of_command, measures_of_run
from farandole.study.points import Point
from farandole.study.running import summary, table_of
from repository import ROOT

PLAN = {"kind": "strong", "title": "nt3_a & b"}


def result(ranks: int, total_s: float, repeat: int = 0, **more: Any) -> dict[str, Any]:
    settings = {"benchmark": "nt3", "ranks": ranks, "nodes": 1, "batch_size": 20, "seed": 1, **more.pop("settings", {})}
    figures = {
        "total_s": total_s, "load_s": 2.0, "train_s": total_s - 3, "local_batch": 20, "global_batch": 20 * ranks,
        "energy_j": 10 * total_s, "power_w": 10.0, "test_accuracy": 0.9, "metric": "accuracy", "power_provenance": "modelled",
    }  # fmt: skip
    return {
        "schema": 2, "study": "strong", **Point(settings=settings, repeat=repeat).as_dict(), "status": "ok", "reason": None,
        "run": None, "marks": ["modelled power"], "figures": {**figures, **more.pop("figures", {})}, **more,
    }  # fmt: skip


RESULTS = [
    result(1, 99.0), result(1, 101.0, 1), result(1, 105.0, 2), result(2, 60.0), result(2, 50.0, 1), result(2, 55.0, 2),
]  # fmt: skip


def a_study(folder: Path, made: list[dict[str, Any]], **about: Any) -> StudyFolder:
    study = StudyFolder(folder)
    plan = {**PLAN, "benchmark": "nt3", "preset": None, "command": "farandole study x", "fixed": {}, **about}
    study.write_plan({**plan, "points": [{name: one[name] for name in ("key", "settings", "repeat")} for one in made]})
    study.append(*({**one, "study": plan["kind"]} for one in made))
    return study


@pytest.fixture
def analysed(tmp_path: Path) -> Callable[..., Analysis]:
    """The analysis of a study of these results."""
    numbers = itertools.count()

    def of(made: list[dict[str, Any]], **about: Any) -> Analysis:
        return analyse_study(a_study(tmp_path / f"study-{next(numbers)}", made, **about).path)

    return of


Analysed = Callable[..., Analysis]


def finished(folder: StudyFolder) -> str:
    """What a study ends with."""
    return summary(folder, lambda _: None)


def test_repeats_are_one_case_with_median_and_spread(analysed: Analysed) -> None:
    found = analysed(RESULTS)
    one, two = found.cases
    assert (two.median("total_s"), two.spread("total_s"), one.runs, two.runs) == (55, (50, 60), 3, 3)
    assert [scaling.speedup for scaling in found.all_scalings] == pytest.approx([1, 101 / 55])


def test_seeds_are_one_case(analysed: Analysed) -> None:
    (case,) = analysed([result(1, 10.0), result(1, 20.0, settings={"seed": 2})]).cases
    assert case.runs == 2 and "seed" not in case.settings


def test_each_series_has_a_base_of_its_own(analysed: Analysed) -> None:
    loaders = [result(n, s, settings={"loader": w}) for w, n, s in [("a", 2, 50), ("a", 1, 90), ("b", 1, 60), ("b", 2, 40)]]
    speedups = {one.case.settings["loader"]: one.speedup for one in analysed(loaders).all_scalings if one.ranks == 2}
    assert speedups == pytest.approx({"a": 90 / 50, "b": 60 / 40})


def test_other_data_is_another_series(analysed: Analysed) -> None:
    """Files that were made anew under the same name, in a study that went on: nothing else would tell the points apart."""
    made = [result(n, s, settings={"data": data}) for data, n, s in [("a", 1, 100), ("a", 2, 60), ("b", 1, 200), ("b", 2, 110)]]
    found = analysed(made)
    speedups = {one.case.settings["data"]: one.speedup for one in found.all_scalings if one.ranks == 2}
    assert speedups == pytest.approx({"a": 100 / 60, "b": 200 / 110})
    assert "data" in table_text(found, "text").splitlines()[2]
    alike = analysed([result(n, 100 / n, settings={"data": "a", "preset": "test"}) for n in (1, 2)])
    assert "data" not in table_text(alike, "text")
    by_preset = analysed([result(1, s, settings={"data": data, "preset": preset}) for s, data, preset in [(9, "a", "test"), (99, "b", "demo")]])
    assert "data" not in table_text(by_preset, "text"), "the preset says it"


def test_emulated_ranks_have_no_speedup(analysed: Analysed) -> None:
    told = [result(1, 10.0 * n, settings={"emulate_ranks": n}, marks=["emulated ranks"]) for n in (1, 8)]
    assert analysed(told).all_scalings == [] and "speedup" not in table_text(analysed(told), "text")


def test_text(analysed: Analysed) -> None:
    told = table_text(analysed(RESULTS), "text")
    assert "base case: 1 rank, 101 s in all" in told and "medians of 3 runs a case" in told
    assert "50.0-60.0" in told and "92%" in told and "1.84x" in told
    assert "~550" in told and "modelled power" in told and "no evidence of a saving" in told


def test_markdown_and_latex_have_every_column_that_is_known(analysed: Analysed) -> None:
    known = {"epoch_s": 3.0, "samples_per_s": 7.0, "energy_per_sample_j": 0.5, "edp_js": 9.0}
    full = analysed([*RESULTS, result(4, 30.0, figures=known, settings={"nodes": 2})])
    for form, mark in (("markdown", "|"), ("latex", "&")):
        rows = [line for line in table_text(full, form).splitlines() if line.count(mark) > 10]
        assert len({line.count(mark) for line in rows}) == 1, rows
        for heading in ("ranks", "nodes", "local batch", "epoch s", "load s", "efficiency", "samples/s", "J/sample", "EDP", "runs"):
            assert heading in rows[0]
        told = table_text(analysed(RESULTS), form)
        assert "total s" in told and "samples/s" not in told and "epoch s" not in told and "EDP" not in told
    latex = table_text(analysed(RESULTS), "latex")
    assert r"nt3\_a \& b" in latex and r"92\%" in latex and r"$\sim$550" in latex


@pytest.mark.parametrize("kind", ["batch", "lr"])
def test_without_an_ideal_there_is_no_efficiency(analysed: Analysed, kind: str) -> None:
    told = analysed([result(1, seconds, settings={"batch_size": batch}) for batch, seconds in ((20, 70.0), (40, 50.0))], kind=kind)
    for form in ("text", "markdown", "latex"):
        shown = table_text(told, form)
        assert "1.40" in shown and "efficiency" not in shown and "140" not in shown
    head, *rows = csv.reader(io.StringIO(table_text(told, "csv")))
    assert [(row[head.index("speedup")], row[head.index("efficiency")]) for row in rows] == [("1.0", ""), ("1.4", "")]


def diverged() -> list[dict[str, Any]]:
    """Of three runs two have no loss, and one no accuracy."""
    known = [{"loss": 0.5, "test_accuracy": 0.98}, {"loss": None, "test_accuracy": 0.96}, {"loss": None, "test_accuracy": None}]
    return [result(1, 10.0, repeat, figures=figures) for repeat, figures in enumerate(known)]


def test_medians_of_fewer_runs_say_so(analysed: Analysed, tmp_path: Path) -> None:
    told = analysed(diverged())
    for form in ("text", "markdown", "latex"):
        shown = table_text(told, form)
        assert "0.500 (1 of 3)" in shown and "0.970 (0.960-0.980, 2 of 3)" in shown and "(N of M): M runs ended well, and N of them have the value" in shown
        assert shown.count(" of 3)") == 2, "what all have needs no word"
    head, row = csv.reader(io.StringIO(table_text(told, "csv")))
    found = dict(zip(head, row))
    assert (found["loss"], found["loss_runs"], found["test_accuracy_runs"], found["runs"]) == ("0.5", "1", "2", "3")
    assert "total_s_runs" not in found and "(N of M)" not in table_text(analysed(RESULTS), "text")
    a_study(tmp_path / "ours", diverged())
    shown = compare(tmp_path / "ours", "summit-2019-table6", ["loss", "test_accuracy"])
    assert "| 0.500 (1 of 3) |" in shown and "| 0.970 (0.960-0.980, 2 of 3) |" in shown


def test_a_busy_machine_is_told(analysed: Analysed, tmp_path: Path) -> None:
    made = [result(n, 10.0 / n, marks=["busy machine"] * (n > 1), figures={"others_share": 0.3 * n if n > 1 else 0.0}) for n in (1, 2, 3)]
    told = analysed(made)
    for form in ("text", "markdown"):
        assert "busy machine: 2, 3 ranks (other programs took 90% of its processor time)" in table_text(told, form)
    assert "busy machine: 2, 3 ranks" in finished(a_study(tmp_path, made))
    imported = analysed([result(1, 10.0, marks=["busy machine"])])
    assert "busy machine: 1 rank" in table_text(imported, "text").splitlines()


def test_csv_can_be_imported_again(analysed: Analysed, tmp_path: Path) -> None:
    more: dict[str, Any] = {"settings": {"epochs": 384}, "figures": {"epochs": 192, "power_provenance": "measured-node"}}
    made = [*RESULTS, result(4, 30.0, marks=["oversubscribed"], **more), result(8, 9.0, status="failed", reason="boom", figures={})]
    before = analysed(made)
    text = table_text(before, "csv")
    head, *rows = csv.reader(io.StringIO(text))
    assert len({*head}) == len(head) and {len(row) for row in rows} == {len(head)}
    row = dict(zip(head, rows[1]))
    assert (row["total_s"], row["total_s_min"], row["total_s_max"]) == ("55.0", "50.0", "60.0")
    file = tmp_path / "numbers.csv"
    file.write_text(text)
    again = analyse_study(import_figures(str(file), tmp_path / "study", None).path)
    for old, new in zip(before.cases, again.cases, strict=True):
        assert new.settings == {name: value for name, value in old.settings.items() if value is not None}
        for name in MEASURES:
            assert (new.median(name), new.spread(name), new.known(name)) == (old.median(name), old.spread(name), old.known(name)), name
        marks = {"imported", *old.marks} if old.runs else set()
        assert (new.provenance, new.modelled, {*new.marks}) == (old.provenance, old.modelled, marks)
    assert len(again.all_scalings) == len(before.all_scalings) and [case.runs for case in again.cases] == [3, 3, 1, 0]
    shown = table_text(again, "text")
    assert "50.0-60.0" in shown and "medians of 1 to 3 runs a case, made where they come from" in shown


def test_counts_come_back(analysed: Analysed, tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text(table_text(analysed(diverged()), "csv"))
    again = analyse_study(import_figures(str(file), tmp_path / "study", None).path)
    assert "0.500 (1 of 3)" in table_text(again, "text")
    before, after = (next(csv.DictReader(io.StringIO(text))) for text in (file.read_text(), table_text(again, "csv")))
    assert {name: plain(cell) for name, cell in after.items()} == {name: plain(cell) for name, cell in before.items()} | {"marks": "imported; modelled power"}


def plain(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def test_others_medians_of_several_runs_have_no_spread(tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("ranks,total_s,runs\n1,20,5\n2,12,5\n")
    told = table_of(import_figures(str(file), tmp_path / "study", None), "text")
    assert "medians of 5 runs a case, made where they come from" in told and "min..max" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('ranks,total_s\n1,20\n2,"1,200"\n', "line 3, column total_s: '1,200' is no number. Write e.g. 1200.5, or nothing where it is not known"),
        ("ranks,total_s\n1,600 s\n", "line 2, column total_s: '600 s' is no number"),
        ("ranks,loss\n1,NaN\n", "line 2, column loss: 'NaN' is no finite number"),
        ("ranks,accuracy\n1,Infinity\n", "line 2, column accuracy: 'Infinity' is no finite number"),
        ("ranks,load_s\n1,true\n", "line 2, column load_s: 'true' is no number"),
        ("ranks,total_s\n1,-5\n", "line 2, column total_s: '-5' is below 0"),
        ("ranks,waiting_s\n1,-5\n", "line 2, column waiting_s: '-5' is below 0"),
        ("ranks,energy_j,power_provenance\n1,-5,modelled\n", "line 2, column energy_j: '-5' is below 0"),
        ("ranks,edp_js\n1,-5\n", "line 2, column edp_js: '-5' is below 0"),
        ("ranks,energy_j_a_rank,power_provenance\n1,-5,modelled\n", "line 2, column energy_j_a_rank: '-5' is below 0"),
        ("ranks,figure_epochs\n1,many\n", "line 2, column figure_epochs: 'many' is no number"),
        ("ranks,total_s,total_s_min\n1,5,x\n", "line 2, column total_s_min: 'x' is no number"),
    ],
)  # fmt: skip
def test_figures_that_are_none_are_not_imported(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "numbers.csv").write_text(text)
    with pytest.raises(DataError) as raised:
        import_figures(str(tmp_path / "numbers.csv"), tmp_path / "bad", None)
    assert str(raised.value).startswith(f"{tmp_path / 'numbers.csv'}, {told}")
    assert not (tmp_path / "bad").exists()


def test_what_may_be_unknown_or_below_zero(tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("ranks,total_s,load_s,loss,above_idle_j,power_w,power_provenance,metric,machine_min\n1,.5, ,-0.1,-2,3,modelled,r2,no\n")
    (found,) = import_figures(str(file), tmp_path / "study", None).results()
    figures = found["figures"]
    assert (figures["total_s"], figures["load_s"], figures["loss"], figures["above_idle_j"]) == (0.5, None, -0.1, -2)
    assert figures["metric"] == "r2"


def test_watts_of_unknown_origin_are_not_imported(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("ranks,power_w\n1,20\n")
    with pytest.raises(DataError, match="power_provenance"):
        import_figures(str(tmp_path / "numbers.csv"), tmp_path / "bad", None)


def test_a_comma_too_many_is_no_cell(tmp_path: Path) -> None:
    file = tmp_path / "numbers.csv"
    file.write_text("ranks,total_s,\n1,20,\n2,10,,\n")
    assert [one["figures"]["total_s"] for one in import_figures(str(file), tmp_path / "good", None).results()] == [20, 10]
    file.write_text("ranks,total_s\n1,20,7\n")
    with pytest.raises(DataError, match="line 2: 7 has no column"):
        import_figures(str(file), tmp_path / "bad", None)


def test_failed_points_are_shown(analysed: Analysed) -> None:
    failed = result(4, 1.0) | {"status": "failed", "reason": "exit code 1: boom", "figures": {}}
    told = analysed([*RESULTS, failed])
    assert (told.cases[2].runs, [one.reason for one in told.cases[2].failed]) == (0, ["exit code 1: boom"])
    for form in FORMATS:
        table_text(told, form)
    assert "0 (1 failed)" in table_text(told, "text")


def test_rows_say_which_batch_they_are_though_nothing_has_told_it(analysed: Analysed) -> None:
    """Programs of the user's tell no local batch, and failed runs no figure at all."""
    made = [result(1, 10.0 + batch, settings={"batch_size": batch}, figures={"local_batch": None}) for batch in (20, 40)]
    made.append(result(1, 1.0, settings={"batch_size": 300}, status="failed", reason="boom") | {"figures": {}})
    head, *rows = [line.split() for line in table_text(analysed(made, kind="batch"), "text").splitlines()[2:6]]
    assert head[:2] == ["batch", "size"] and [row[0] for row in rows] == ["20", "40", "300"]


def test_failed_points_are_described_by_what_tells_them_apart(tmp_path: Path) -> None:
    made = [result(2, 10.0, repeat, settings={"batch_size": batch}) for repeat in (0, 1) for batch in (20, 300)]
    made[3] |= {"status": "failed", "reason": "exit code 1: boom", "run": "points/x", "figures": {}}
    told = finished(a_study(tmp_path, made))
    assert f"failed: 2 ranks, batch_size=300, repeat 2: exit code 1: boom; see {tmp_path / 'points/x/console.txt'}" in told.splitlines()


def test_an_imported_failure_has_no_log(tmp_path: Path) -> None:
    (tmp_path / "numbers.csv").write_text("ranks,total_s,runs,failed\n1,20,1,0\n2,,0,1\n")
    told = finished(import_figures(str(tmp_path / "numbers.csv"), tmp_path / "study", None))
    assert "failed: 2 ranks: it failed where it comes from" in told.splitlines()


@pytest.mark.parametrize("form", ["text", "markdown", "latex"])
def test_tables_say_whether_whole_nodes_were_measured(analysed: Analysed, form: str) -> None:
    nodes = [result(n, 10.0, marks=[], figures={"power_provenance": "measured-node"}) for n in (1, 2)]
    parts = [result(n, 10.0, marks=[], figures={"power_provenance": "measured-component"}) for n in (4, 8)]
    of_nodes, of_parts = "power of whole nodes, measured", "power of the parts of nodes that have meters, measured"
    told = table_text(analysed(nodes), form)
    assert of_nodes in told and of_parts not in told and "modelled" not in told
    told = table_text(analysed([*nodes, *parts]), form)
    assert f"{of_nodes}: 1, 2 ranks" in told and f"{of_parts}: 4, 8 ranks" in told


def test_power_beside_a_paper_s_says_how_each_is_known(tmp_path: Path) -> None:
    a_study(tmp_path, [result(n, 1.0, settings={"batch_size": 20}) for n in (1, 6)])
    told = compare(tmp_path, "summit-2019-table2", ["epoch_s", "power_w"]).splitlines()
    assert "- theirs: power of the parts of nodes that have meters, measured" in told
    assert "- ours: ~ modelled power (TDP x utilisation), not measured: no evidence of a saving" in told
    assert "power" not in "".join(compare(tmp_path, "summit-2019-table2", ["epoch_s"]).splitlines()[3:])


def test_an_unknown_format_is_refused(analysed: Analysed) -> None:
    with pytest.raises(SettingsError, match="text, markdown, csv, latex"):
        table_text(analysed(RESULTS), "html")


def a_run(folder: Path) -> None:
    seconds = {name: {"ranks": [1.0, 3.0], "max": 3.0} for name in ("start", "load", "broadcast", "train", "evaluate")}
    record = {
        "benchmark": "p1b3", "metric": "r2", "seconds": {**seconds, "total": {"ranks": [10.0, 12.0], "max": 12.0}},
        "epoch_s": {"median": 0.5}, "step_s": {"median": 0.1}, "samples_per_s": 100.0,
        "communication": {"bytes": [8, 8], "seconds": [1.0, 2.0], "exposed_s": [0.5, 0.7]},
        "final": {"train": {"loss": 1.0, "r2": 0.5, "accuracy": 0.7}, "test": {"loss": 2.0, "r2": 0.4, "accuracy": 0.6}},
        "plan": {"global_batch": 20, "local_batch": 10, "epochs": 384, "samples_per_epoch": 50},
        "epochs": [{}, {}], "parameters": 7, "memory": {"peak_bytes": [5, 6]}, "hosts": ["a", "a"],
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record))


def test_figures_of_a_run(tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    found = measures_of_run(tmp_path / "run")
    energy_measures(found, {"energy_j": 300.0, "mean_w": 25.0, "reason": "", "provenance": "measured-node"})
    expected = {
        "total_s": 12.0, "load_s": 2.0, "train_s": 2.0, "comm_s": 1.5, "exposed_s": 0.6, "peak_bytes": 6,
        "test_accuracy": 0.4, "metric": "r2", "energy_per_sample_j": 3.0, "edp_js": 3600.0, "parameters": 7,
        "power_provenance": "measured-node", "sign_accuracy": 0.7, "test_sign_accuracy": 0.6,
        "epochs": 2,
    }  # fmt: skip
    for name, value in expected.items():
        assert found.values[name] == (value if isinstance(value, str) else pytest.approx(value)), name
    assert {*MEASURES} <= {*found.values}
    unknown = {name for name in MEASURES if found.values[name] is None}
    assert {"wait_s", "data_stall_s"} <= {*found.reasons} <= {*unknown, "collective"}


def test_the_energy_delay_product_is_of_the_time_the_energy_is_of(tmp_path: Path) -> None:
    """On one node that is longer than the run, on several shorter."""
    a_run(tmp_path / "run")
    found = measures_of_run(tmp_path / "run")
    told = {"energy_j": 300.0, "mean_w": 30.0, "duration_s": 10.0, "reason": "", "provenance": "measured-node"}
    energy_measures(found, told)
    assert found.values["edp_js"] == 3000.0 == found.values["energy_j"] ** 2 / found.values["power_w"]


def test_a_run_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has left no record"):
        measures_of_run(tmp_path)


def test_figures_of_a_program_of_the_user_s() -> None:
    found = measures_of_command(9.0, {"loss": 0.5})
    assert (found.values["total_s"], found.values["loss"]) == (9.0, 0.5)
    assert found.reasons["accuracy"] == "the program has not told it" and "loss" not in found.reasons
    diverged = measures_of_command(9.0, {"loss": float("nan")})
    assert diverged.values["loss"] is None and "no number" in diverged.reasons["loss"], "JSON has no NaN"
    with pytest.raises(DataError, match="unknown figure speed; known: total_s"):
        measures_of_command(9.0, {"speed": 1})


def job_with_sacct(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch, joules: int, plugin: str = "") -> Path:
    """A job of 16 s that has ended, its command in 10 s, and a Slurm that knows its joules and perhaps from where; the program to change that."""
    tmp_path = folder.path
    made = result(2, 5.0, run="points/x", started="2026", wall_s=10.0, reasons={}, job={"system": "slurm", "id": "7"})
    plan = {"kind": "strong", "title": "t", "benchmark": "nt3", "preset": None, "fixed": {}}
    folder.write_plan({**plan, "points": [{name: made[name] for name in ("key", "settings", "repeat")}]})
    (tmp_path / "points" / "x").mkdir(parents=True)
    (tmp_path / "points" / "x" / "result.json").write_text(json.dumps(made))
    sacct = tmp_path / "bin" / "sacct"
    sacct.parent.mkdir()
    sacct.write_text(f"#!/bin/sh\necho $@ | grep -q -- '--format=ConsumedEnergyRaw,ElapsedRaw --jobs=7' && echo '{joules}|16'\n")
    sacct.chmod(0o755)
    scontrol = sacct.with_name("scontrol")
    scontrol.write_text(f"#!/bin/sh\ntest '{plugin}' && echo 'AcctGatherEnergyType    = {plugin}'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sacct.parent}:{os.environ['PATH']}")
    return sacct


def test_results_that_jobs_have_left_are_collected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StudyFolder(tmp_path)
    job_with_sacct(folder, monkeypatch, 640, "acct_gather_energy/ipmi")
    assert (collect(folder), collect(folder, ask_again=True)) == (1, 0)
    (found,) = folder.results()
    assert [found["figures"][name] for name in ("energy_j", "power_w", "edp_js")] == [640.0, 40.0, 10240.0]
    assert found["figures"]["above_idle_j"] is None and "Slurm has counted" in found["reasons"]["above_idle_j"]
    assert found["figures"]["power_provenance"] == "measured-node" and found["marks"] == ["energy from sacct"]


@pytest.mark.parametrize(
    ("plugin", "known", "told", "chip"),
    [
        ("acct_gather_energy/pm_counters", "measured-node", "power of whole nodes, measured", "measured, whole nodes"),
        ("acct_gather_energy/rapl", "measured-component", "power of the parts of nodes that have meters, measured", "measured, parts of nodes"),
        ("acct_gather_energy/gpu,acct_gather_energy/rapl", "measured-component", "power of the parts of nodes", "measured, parts of nodes"),
        ("acct_gather_energy/new", "measured-component", "energy of whole nodes or of parts, not known which: 2 ranks", "measured, not known what"),
        ("", "measured-component", "energy of whole nodes or of parts, not known which: 2 ranks", "measured, not known what"),
    ],
)  # fmt: skip
def test_joules_of_slurm_s_are_of_what_its_plugin_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: str, known: str, told: str, chip: str
) -> None:
    folder = StudyFolder(tmp_path)
    job_with_sacct(folder, monkeypatch, 640, plugin)
    assert main(["study", "collect", str(tmp_path)]) == 0
    (found,) = folder.results()
    assert found["figures"]["power_provenance"] == known and (plugin.split(",")[0] or "does not say") in found["energy_source"]
    shown = table_of(folder, "text")
    assert told in shown and ("power of the parts" in shown) == ("power of the parts" in told)
    assert chip in (tmp_path / "report.html").read_text()


def test_joules_that_slurm_adds_up_later_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StudyFolder(tmp_path)
    sacct = job_with_sacct(folder, monkeypatch, 0)
    assert collect(folder) == 1
    sacct.write_text(sacct.read_text().replace("echo '0|", "echo '640|"))
    assert collect(folder, ask_again=True) == 0
    (found,) = folder.last_results().values()
    assert found["figures"]["energy_j"] == 640.0 and "energy from sacct" in found["marks"]


def test_the_papers_tables() -> None:
    tables = papers_tables()
    assert len(tables) >= 10
    for name, table in tables.items():
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}, name
        assert ("TensorFlow: " if name.startswith("tensorflow") else "Wu") in table["source"] and table["where"]
    epochs = {(row[0], row[1]): row[2] for row in tables["summit-2019-table2"]["rows"]}
    assert (epochs[20, 384], epochs[40, 1]) == (21.82, 10.14)


def test_every_table_of_the_papers_can_be_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, table in papers_tables().items():
        folder = tmp_path / name
        assert main(["study", "import", name, "--out", str(folder)]) == 0
        found, shown = analyse_study(folder), capsys.readouterr().out
        assert len(found.cases) == len(table["rows"]), name
        for form in FORMATS:
            assert form == "csv" or table["source"].split(",")[0] in table_text(found, form), name
        assert table["source"].split(",")[0] in shown and shown.endswith(f"page      {folder / 'report.html'}\n"), name
    # 384 GPUs of 59.14 W, and joules of one times 384.
    of_384 = [case for case in analyse_study(tmp_path / "summit-2019-table5").cases if case.ranks == 384]
    assert of_384[0].median("power_w") == pytest.approx(384 * 59.14)
    assert of_384[0].median("energy_j") == pytest.approx(384 * 13227.92)


def test_loaders_of_a_paper_are_compared_file_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "import", "summit-2019-table3", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "With nt3, test, file mb 150, loading time 5.25 s with loader pandas-chunked, 22.2 s with pandas: too few repeats" in told
    assert "<svg" in (tmp_path / "report.html").read_text().split('id="figure-time"')[1].split("</figure>")[0]


def test_files_of_spreadsheets_can_be_imported(tmp_path: Path) -> None:
    """They begin with a mark of their encoding."""
    file = tmp_path / "numbers.csv"
    file.write_bytes("ranks,total_s,machine\n1,20,Zürich\n".encode("utf-8-sig"))
    (found,) = import_figures(str(file), tmp_path / "good", None).results()
    assert (found["settings"], found["figures"]["total_s"]) == ({"ranks": 1, "machine": "Zürich"}, 20)
    file.write_bytes("ranks,total_s,machine\n1,20,Zürich\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"numbers\.csv cannot be read: .*save it as CSV in UTF-8"):
        import_figures(str(file), tmp_path / "bad", None)


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="summit-2019-table2"):
        import_figures("table9", tmp_path / "x", None)
    file = tmp_path / "numbers.csv"
    file.write_text("batch_size,total_s\n20,3\n")
    with pytest.raises(DataError, match="column `ranks`"):
        import_figures(str(file), tmp_path / "x", None)
    file.write_text("ranks,total_s\n")
    with pytest.raises(DataError, match="no rows"):
        import_figures(str(file), tmp_path / "x", None)


def test_the_document_names_every_figure() -> None:
    told = (ROOT / "docs" / "results.md").read_text()
    assert [name for name, meaning in MEASURES.items() if f"| `{name}` | {meaning} |" not in told] == []


def test_ours_beside_a_paper_s(tmp_path: Path) -> None:
    made = [
        result(1, 1.0, settings={"emulate_ranks": n, "lr_scaling": rule, "seed": seed}, figures={"test_accuracy": a + seed / 100})
        for n, rule, a in ((50, "linear", 0.9), (400, "linear", 0.5), (7, "none", 0.7))
        for seed in (1, 2, 3)
    ]
    a_study(tmp_path, made)
    told = compare(tmp_path, "theta-2018-table4", ["test_accuracy"]).splitlines()
    assert told[0] == "| ranks | lr_scaling | test_accuracy, theirs | test_accuracy, ours |"
    assert "| 400 | linear | 0.514 | 0.520 (0.510-0.530) |" in told
    assert "| 7 | none | - | 0.720 (0.710-0.730) |" in told and "| 200 | none | 0.804 | - |" in told
    assert "- ours: `farandole study x`" in told
    with pytest.raises(SettingsError, match="unknown figure speed"):
        compare(tmp_path, "theta-2018-table4", ["speed"])


def test_ranks_that_are_nearly_as_many_meet_and_say_so(tmp_path: Path) -> None:
    """The paper divides 400 epochs, ours 384: none of their ranks are ours."""
    made = [
        result(1, 1.0, settings={"emulate_ranks": n, "lr_scaling": rule, "seed": 1}, figures={"test_accuracy": 0.9})
        for n in (1, 24, 48, 52, 384)
        for rule in ("linear", "none")
    ]
    a_study(tmp_path, made)
    told = compare(tmp_path, "theta-2018-table4", ["test_accuracy"]).splitlines()
    rows = [line for line in told if "| linear |" in line]
    assert rows == [
        "| 1 | linear | - | 0.900 |", "| 24 beside 25 | linear | 0.982 | 0.900 |", "| 48 | linear | - | 0.900 |",
        "| 52 beside 50 | linear | 0.979 | 0.900 |", "| 100 | linear | 0.486 | - |", "| 200 | linear | 0.514 | - |",
        "| 384 beside 400 | linear | 0.514 | 0.900 |",
    ]  # fmt: skip
    assert [line for line in told if line.startswith("- N beside M: N ranks of ours, M of theirs")]


def test_where_nothing_meets_both_sides_ranks_are_told(tmp_path: Path) -> None:
    a_study(tmp_path, [result(n, 1.0, settings={"lr_scaling": "linear"}, figures={"test_accuracy": 0.9}) for n in (1, 2)])
    told = compare(tmp_path, "theta-2018-table4", ["test_accuracy"])
    assert "no case of ours meets one of theirs by ranks (within 10%), lr_scaling: ours have 1, 2 ranks, theirs 25, 50, 100, 200, 400" in told


def test_cases_meet_though_theirs_differ_in_what_ours_never_had(tmp_path: Path) -> None:
    """The paper's runs are with two loaders, ours with a third."""
    made = [
        result(1, 1.0, settings={"emulate_ranks": n, "loader": "fast-cached", "batch_size": 20}, figures={"accuracy": 0.9})
        for n in (1, 24)
    ]
    a_study(tmp_path, made)
    head, _, *rows = compare(tmp_path, "summit-2019-table6", ["accuracy"]).splitlines()
    assert "loader" not in head
    met = [row for row in rows if row.startswith("|") and row.endswith("| 0.900 |")]
    assert len(met) == 2 and not any("| - |" in row for row in met)
    assert any("theirs differ in" in row and "loader" in row for row in rows)


def p1b3_study(folder: Path, **figures: Any) -> Path:
    told = {"accuracy": 0.12, "test_accuracy": 0.1, "metric": "r2", **figures}
    made = result(1, 1.0, settings={"benchmark": "p1b3", "emulate_ranks": 48, "batch_scaling": "cbrt"}, figures=told)
    plan = {"kind": "strong", "title": "t", "benchmark": "p1b3", "preset": None, "command": "farandole study x", "fixed": {}}
    study = StudyFolder(folder)
    study.write_plan({**plan, "points": [{name: made[name] for name in ("key", "settings", "repeat")}]})
    study.append(made)
    return folder


def test_p1b3_s_accuracy_is_beside_the_paper_s_and_its_r2_is_not(tmp_path: Path) -> None:
    head, _, *rows = compare(p1b3_study(tmp_path / "ours", sign_accuracy=0.64), "summit-2019-p1b3", ["sign_accuracy", "accuracy"]).splitlines()
    assert head == "| ranks | sign_accuracy, theirs | sign_accuracy, ours | accuracy, theirs | accuracy (r2), ours |"
    assert rows[0] == "| 48 | 0.658 | 0.640 | - | 0.120 |"


def test_measures_that_differ_are_not_put_beside_each_other(tmp_path: Path) -> None:
    ours = p1b3_study(tmp_path / "ours")
    with pytest.raises(SettingsError, match=r"accuracy is r2 in ours and accuracy in theirs.*sign_accuracy"):
        compare(ours, str(p1b3_study(tmp_path / "theirs", metric="accuracy")), ["accuracy"])
    assert compare(ours, str(p1b3_study(tmp_path / "alike")), ["accuracy"]).startswith("| ranks | accuracy (r2), theirs | accuracy (r2), ours |")
