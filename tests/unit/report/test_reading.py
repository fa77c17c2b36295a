"""Folders are read as they are left: cut off, mixed, half done."""

import json
from pathlib import Path

import pytest

from farandole.errors import DataError
from farandole.report.groups import axis_of, points_of, series_of
from farandole.report.reading import read_folder
from studyfolder import Shape, make_run, make_study

BARE = {"power": "none", "trace": False}


def study(folder: Path, **shape: object) -> Path:
    return make_study(folder, Shape(**{"ranks": (1, 2), "repeats": 2, **BARE, **shape}))  # type: ignore[arg-type]


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path: Path) -> None:
    results = study(tmp_path) / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-30])
    found = read_folder(tmp_path)
    assert len(found.attempts) == 3
    assert found.planned == 4
    assert found.warnings == ["results.jsonl: its last line was cut off and is left out."]


def test_lines_of_another_study_are_left_out_and_said(tmp_path: Path) -> None:
    results = study(tmp_path) / "results.jsonl"
    stranger = json.loads(results.read_text().splitlines()[0]) | {"study": "weak"}
    of_the_same_kind = json.loads(results.read_text().splitlines()[0]) | {"key": "0123456789ab"}
    results.write_text(json.dumps(stranger) + "\n" + results.read_text() + json.dumps(of_the_same_kind) + "\n")
    found = read_folder(tmp_path)
    assert len(found.attempts) == 4
    assert found.warnings == ["results.jsonl: 2 of its lines belong to another study and are left out."]


def test_a_point_that_failed_and_was_run_again_has_not_failed(tmp_path: Path) -> None:
    results = study(tmp_path, failures=((2, 1),)) / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    again = next(line for line in lines if line["status"] == "ok" and line["settings"]["ranks"] == 2) | {"repeat": 1}
    results.write_text("".join(json.dumps(line) + "\n" for line in [*lines, again]))
    found = read_folder(tmp_path)
    assert (len(found.finished), len(found.failed), found.tries) == (4, 0, 5)


def test_a_study_without_results_has_no_attempts(tmp_path: Path) -> None:
    (study(tmp_path) / "results.jsonl").unlink()
    found = read_folder(tmp_path)
    assert found.attempts == []
    assert "no run has ended" in found.warnings[0]


@pytest.mark.parametrize(
    ("content", "told"), [("{", "is no JSON object"), ("[1]", "is no JSON object"), ('{"schema": 7}', "has schema 7")]
)
def test_a_damaged_study_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(DataError, match=told):
        read_folder(tmp_path)


def test_a_folder_that_is_neither_study_nor_run_is_refused_with_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither study.json nor run.json.*farandole run"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="is not there"):
        read_folder(tmp_path / "absent")


def test_a_run_is_a_study_of_one_point(tmp_path: Path) -> None:
    found = read_folder(make_run(tmp_path, ranks=4, trace=False))
    (attempt,) = found.attempts
    record = json.loads((tmp_path / "run.json").read_text())
    assert found.is_run
    assert attempt.figure("total_s") == record["seconds"]["total"]["max"]
    assert attempt.figure("test_accuracy") == 0.981
    assert attempt.figure("energy_j") is None
    assert "power was not sampled" in found.reason("energy_j")


@pytest.mark.parametrize("resumed_from", [None, "out/nt3/checkpoints/step-9"])
def test_joules_of_the_last_start_are_not_those_of_a_resumed_run(tmp_path: Path, resumed_from: str | None) -> None:
    record = json.loads((make_run(tmp_path, epochs=5, trace=False) / "run.json").read_text())
    record["checkpoints"] = {"starts": 2, "resumed_from": resumed_from}
    (tmp_path / "run.json").write_text(json.dumps(record))
    power = {"energy_j": 5600.0, "mean_w": 80.0, "idle_w": 50.0, "above_idle_j": 2100.0, "duration_s": 70.0, "provenance": "measured-node", "reason": ""}
    (tmp_path / "power.json").write_text(json.dumps({"total": power}))
    found = read_folder(tmp_path)
    (attempt,) = found.attempts
    known = [attempt.figure(name) for name in ("energy_j", "power_w", "above_idle_j", "energy_per_sample_j", "edp_js")]
    if resumed_from is None:
        assert known == [5600.0, 80.0, 2100.0, 1.0, 5600.0 * 70.0] and not found.reason("energy_j"), "of the seconds it was taken in"
    else:
        assert known == [None] * 5 and "of its last start alone" in found.reason("energy_j")


def test_more_ranks_than_cores_are_marked_in_a_single_run_too(tmp_path: Path) -> None:
    (attempt,) = read_folder(make_run(tmp_path, ranks=16, trace=False)).attempts
    assert "oversubscribed" in attempt.marks


def test_repeats_become_one_point_and_loaders_series(tmp_path: Path) -> None:
    points = points_of(read_folder(study(tmp_path, loaders=("pandas", "fast"), failures=((2, 0),))))
    axis = axis_of("strong", points)
    series = series_of(points, axis)
    assert (axis.name, [one.label for one in series]) == ("ranks", ["fast", "pandas"])
    assert [(point.ranks, len(point.attempts), len(point.failed)) for point in points] == [
        (1, 2, 0), (2, 1, 1), (1, 2, 0), (2, 1, 1),
    ]  # fmt: skip
    low, high = points[0].spread("total_s") or (0.0, 0.0)
    assert low < (points[0].median("total_s") or 0.0) < high


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
    points = points_of(read_folder(study(tmp_path, kind=kind, **shape)))
    assert axis_of(kind, points).name == axis
