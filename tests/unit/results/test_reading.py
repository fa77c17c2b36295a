"""Folders are read as they are left: cut off, mixed, half done."""

import json
from pathlib import Path

import pytest

from farandole.errors import DataError
from farandole.report import write_report
from farandole.results.analysis import Analysis, analyse_study, table_text
from farandole.results.cases import axis_of, cases_of
from farandole.results.reading import read_folder
from studyfolder import Shape, changed, make_loaders, make_run, make_study

BARE = {"power": "none", "trace": False}


def study(folder: Path, **shape: object) -> Path:
    return make_study(folder, Shape(**{"ranks": (1, 2), "repeats": 2, **BARE, **shape}))  # type: ignore[arg-type]


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    results = study(tmp_path) / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-30])
    found = read_folder(tmp_path)
    assert len(found.results) == 3
    assert found.planned == 4
    assert found.warnings == ["results.jsonl: its last line was cut off and is left out."]


def test_lines_of_another_study_are_left_out_and_said(tmp_path: Path) -> None:
    results = study(tmp_path) / "results.jsonl"
    stranger = json.loads(results.read_text().splitlines()[0]) | {"study": "weak"}
    of_the_same_kind = json.loads(results.read_text().splitlines()[0]) | {"key": "0123456789ab"}
    results.write_text(json.dumps(stranger) + "\n" + results.read_text() + json.dumps(of_the_same_kind) + "\n")
    found = read_folder(tmp_path)
    assert len(found.results) == 4
    assert found.warnings == ["results.jsonl: 2 of its lines belong to another study and are left out."]


def test_a_point_that_failed_and_was_run_again_has_not_failed(tmp_path: Path) -> None:
    results = study(tmp_path, failures=((2, 1),)) / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    again = next(line for line in lines if line["status"] == "ok" and line["settings"]["ranks"] == 2) | {"repeat": 1}
    results.write_text("".join(json.dumps(line) + "\n" for line in [*lines, again]))
    found = read_folder(tmp_path)
    assert (len(found.finished), len(found.failed), found.tries) == (4, 0, 5)


def test_a_study_without_results_is_a_study(tmp_path: Path) -> None:
    (study(tmp_path) / "results.jsonl").unlink()
    found = read_folder(tmp_path)
    assert found.results == []
    assert found.warnings == ["There is no results.jsonl yet: no run has ended."]


@pytest.mark.parametrize("broken", [{"repeat": "first"}, {"repeat": None}, {"figures": [1.0]}, {"settings": "ranks=2"}])
def test_a_line_with_values_of_other_kinds_is_left_out_and_said(tmp_path: Path, broken: dict[str, object]) -> None:
    first, *_ = [json.loads(line) for line in (study(tmp_path) / "results.jsonl").read_text().splitlines()]
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(json.dumps(first | broken) + "\n")
    found = read_folder(tmp_path)
    assert len(found.results) == 4
    assert found.warnings == ["results.jsonl: 1 of its lines belongs to another study and is left out."]


@pytest.mark.parametrize("stranger", ['"a word"', "[1, 2]", "{}", '{"study": "strong", "key": "0123456789ab"}'])
def test_a_line_that_is_no_result_is_left_out_and_said(tmp_path: Path, stranger: str) -> None:
    results = study(tmp_path) / "results.jsonl"
    first, *rest = results.read_text().splitlines()
    results.write_text("\n".join([first, stranger, *rest]) + "\n")
    found = read_folder(tmp_path)
    assert len(found.results) == 4 and len(found.warnings) == 1
    assert found.warnings[0].startswith("results.jsonl: ") and found.warnings[0].endswith(" left out.")


def test_bytes_that_are_no_text_are_a_torn_line(tmp_path: Path) -> None:
    results = study(tmp_path) / "results.jsonl"
    first, rest = results.read_bytes().split(b"\n", 1)
    results.write_bytes(first + b"\n\xff\x00\x80\n" + rest)
    found = read_folder(tmp_path)
    assert len(found.results) == 4
    assert found.warnings == ["results.jsonl: line 2 was cut off and is left out."]


def test_what_a_later_version_adds_to_a_line_is_no_reason_to_leave_it_out(tmp_path: Path) -> None:
    changed(study(tmp_path), lambda line: line.update(weather="rain"))
    changed(tmp_path, lambda line: line["figures"].update(neighbours=3, threads=None))
    found = read_folder(tmp_path)
    assert (len(found.finished), found.warnings) == (4, [])
    assert str(analyse_study(found).verdict()) == str(analyse_study(study(tmp_path / "plain")).verdict())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "12", True, None])
def test_what_is_no_finite_number_is_not_known(tmp_path: Path, value: object) -> None:
    changed(study(tmp_path), lambda line: line["figures"].update(test_accuracy=value) if line["repeat"] else None)
    case, _ = analyse_study(tmp_path).cases
    assert (len(case.values("test_accuracy")), case.partly("test_accuracy")) == (1, "1 of 2")


@pytest.mark.parametrize(
    ("measure", "value", "told"),
    [
        ("total_s", -3.0, "results.jsonl: total_s of 2 runs is left out: it cannot be -3."),
        ("train_s", 0.0, "results.jsonl: train_s of 2 runs is left out: it cannot be 0."),
        ("energy_j", -4.0, "results.jsonl: energy_j of 2 runs is left out: it cannot be -4."),
        ("load_s", 0.0, ""),
    ],
)
def test_times_and_joules_that_cannot_be_are_left_out_and_said(tmp_path: Path, measure: str, value: float, told: str) -> None:
    found = read_folder(changed(study(tmp_path), lambda line: line["figures"].update({measure: value}) if line["repeat"] else None))
    assert found.warnings == ([told] if told else [])
    assert [result.measure(measure) for result in found.results if result.repeat] == [None if told else value] * 2


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is no JSON object"),
        ("[1]", "is no JSON object"),
        ('{"schema": 7}', r"has schema 7, this version reads 1 and 2\. Read it with the version of farandole that wrote it"),
        ('{"points": []}', r"has schema None, .*Make it again"),
        ('{"schema": 2}', "it has no points"),
    ],
)
def test_a_damaged_plan_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(DataError, match=told):
        read_folder(tmp_path)


@pytest.mark.parametrize(("content", "told"), [("{", "is no JSON object"), ('{"schema": 3}', "has schema 3")])
def test_a_damaged_run_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    (make_run(tmp_path, trace=False) / "run.json").write_text(content)
    with pytest.raises(DataError, match=rf"run\.json {told}"):
        read_folder(tmp_path)


def test_a_folder_that_is_neither_study_nor_run_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither study.json nor run.json.*farandole run"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="is not there"):
        read_folder(tmp_path / "absent")


def test_a_run_is_a_study_of_one_point(tmp_path: Path) -> None:
    found = read_folder(make_run(tmp_path, ranks=4, trace=False))
    (result,) = found.results
    record = json.loads((tmp_path / "run.json").read_text())
    assert found.is_run
    assert result.measure("total_s") == record["seconds"]["total"]["max"]
    assert result.measure("test_accuracy") == 0.981
    assert result.measure("energy_j") is None
    assert "power was not sampled" in found.reason("energy_j")


@pytest.mark.parametrize("resumed_from", [None, "out/nt3/checkpoints/step-9"])
def test_joules_of_the_last_start_are_not_those_of_a_resumed_run(tmp_path: Path, resumed_from: str | None) -> None:
    record = json.loads((make_run(tmp_path, epochs=5, trace=False) / "run.json").read_text())
    record["checkpoints"] = {"starts": 2, "resumed_from": resumed_from}
    (tmp_path / "run.json").write_text(json.dumps(record))
    power = {"energy_j": 5600.0, "mean_w": 80.0, "idle_w": 50.0, "above_idle_j": 2100.0, "duration_s": 70.0, "provenance": "measured-node", "reason": ""}
    (tmp_path / "power.json").write_text(json.dumps({"total": power}))
    found = read_folder(tmp_path)
    (result,) = found.results
    known = [result.measure(name) for name in ("energy_j", "power_w", "above_idle_j", "energy_per_sample_j", "edp_js")]
    if resumed_from is None:
        assert known == [5600.0, 80.0, 2100.0, 1.0, 5600.0 * 70.0] and not found.reason("energy_j"), "of the seconds it was taken in"
    else:
        assert known == [None] * 5 and "of its last start alone" in found.reason("energy_j")


def test_more_ranks_than_cores_are_marked_in_a_single_run_too(tmp_path: Path) -> None:
    (result,) = read_folder(make_run(tmp_path, ranks=16, trace=False)).results
    assert "oversubscribed" in result.marks


def test_repeats_become_one_case_and_loaders_series(tmp_path: Path) -> None:
    found = analyse_study(study(tmp_path, loaders=("pandas", "fast"), failures=((2, 0),)))
    assert (found.axis.name, [one.label for one in found.series]) == ("ranks", ["fast", "pandas"])
    assert [(case.ranks, len(case.results), len(case.failed)) for case in found.cases] == [
        (1, 2, 0), (2, 1, 1), (1, 2, 0), (2, 1, 1),
    ]  # fmt: skip
    low, high = found.cases[0].spread("total_s") or (0.0, 0.0)
    assert low < (found.cases[0].median("total_s") or 0.0) < high


def test_repeats_with_one_seed_say_nothing_of_how_models_vary(tmp_path: Path) -> None:
    """They train the same model again: of times there are three values, of accuracy one."""
    (case, _) = analyse_study(study(tmp_path / "same", repeats=3)).cases
    assert [len(case.repeats(measure)) for measure in ("total_s", "load_s", "test_accuracy", "loss")] == [3, 3, 1, 1]
    changed(study(tmp_path / "other", repeats=3), lambda line: line["settings"].update(seed=line["repeat"] // 2))
    (case, _) = analyse_study(tmp_path / "other").cases
    assert [len(case.repeats(measure)) for measure in ("total_s", "test_accuracy")] == [3, 2], "seeds 0, 0 and 1"
    assert len(case.values("test_accuracy")) == 3


@pytest.mark.parametrize(
    ("kind", "shape", "axis"),
    [
        ("batch", {"ranks": (2,), "batch_sizes": (10, 20)}, "batch_size"),
        ("lr", {"ranks": (2,), "rates": (0.1, 0.2)}, "rate"),
        ("strong", {"ranks": (2,), "loaders": ("pandas", "fast")}, "loader"),
        ("ours", {"ranks": (1, 2)}, "ranks"),
    ],
)
def test_the_axis_is_what_the_study_varies(tmp_path: Path, kind: str, shape: dict[str, object], axis: str) -> None:
    assert axis_of(kind, cases_of(read_folder(study(tmp_path, kind=kind, **shape)))).name == axis


def shown(folder: Path) -> tuple[Analysis, str, str]:
    """Its analysis, table and page."""
    found = analyse_study(folder)
    return found, table_text(found, "text"), write_report(folder).read_text()


@pytest.mark.parametrize("schema", [1, 2])
def test_studies_of_both_schemas_are_read_tabulated_and_drawn(tmp_path: Path, schema: int) -> None:
    found, table, page = shown(make_study(tmp_path, Shape(ranks=(1, 2), schema=schema)))
    assert (len(found.study.finished), found.study.warnings) == (6, [])
    assert found.verdict().headline.startswith("Efficient to 2 ranks, the most that were run: 9")
    assert ("threads" in table) == (schema == 2), "which the one before did not tell"
    assert "do not say how many threads a rank had" in page or schema == 2
    for name in ("time", "efficiency", "energy", "accuracy", "heat", "timeline"):
        assert "<svg" in page.split(f'id="figure-{name}"')[1].split("</figure>")[0], name


@pytest.mark.parametrize("schema", [1, 2])
def test_runs_of_both_schemas_are_read_tabulated_and_drawn(tmp_path: Path, schema: int) -> None:
    found, table, page = shown(make_run(tmp_path, schema=schema))
    (result,) = found.study.results
    assert (result.measure("threads"), result.measure("startup_s")) == ((None, None) if schema == 1 else (2.0, 0.4))
    assert found.verdict().headline.startswith("4 ranks trained for 8 epochs in ") and "0.981" in table
    for name in ("phases", "history-loss", "heat", "timeline"):
        assert "<svg" in page.split(f'id="figure-{name}"')[1].split("</figure>")[0], name


@pytest.mark.parametrize("schema", [1, 2])
def test_loaders_of_both_schemas_are_read_tabulated_and_drawn(tmp_path: Path, schema: int) -> None:
    found, table, page = shown(make_loaders(tmp_path, loaders=("pandas", "fast"), schema=schema))
    assert (len(found.cases), len(found.study.finished)) == (3 * 2 * 2, 36)
    assert "7.06x" in table and "inode" not in table and "mtime" not in table
    assert "<svg" in page.split('id="figure-time"')[1].split("</figure>")[0]
