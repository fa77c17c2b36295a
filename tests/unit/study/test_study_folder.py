"""A study's folder: nothing is measured twice, nothing is lost, and nothing is mixed."""

import json
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.errors import DataError
from farandole.results.reading import read_folder
from farandole.study.folder import StudyFolder
from farandole.study.points import Point

ONE, TWO = Point(settings={"ranks": 1}), Point(settings={"ranks": 2})


def plan(*points: Point, **more: Any) -> dict[str, Any]:
    told = {"kind": "strong", "title": "t", "benchmark": "nt3", "preset": "test", "fixed": {"epochs": 4}}
    return {**told, "points": [point.as_dict() for point in points], **more}


def result(point: Point, status: str = "ok", **more: Any) -> dict[str, Any]:
    return {
        "schema": 2, "study": "strong", **point.as_dict(), "status": status, "reason": None, "run": f"points/{point.name}",
        "figures": {"total_s": 1.0}, **more,
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    made = StudyFolder(tmp_path / "study")
    made.write_plan(plan(ONE, TWO))
    return made


def test_what_is_done_is_not_missing_and_what_failed_is_tried_again(folder: StudyFolder) -> None:
    assert folder.missing([ONE, TWO]) == [ONE, TWO]
    folder.append(result(ONE))
    folder.append(result(TWO, "failed"))
    assert folder.missing([ONE, TWO]) == [TWO]
    folder.append(result(TWO))
    assert folder.missing([ONE, TWO]) == []
    assert [one["status"] for one in folder.results()] == ["ok", "failed", "ok"], "every attempt is kept"
    assert folder.missing([Point(settings={"ranks": 1}, repeat=1)]), "a further repeat is another measurement"


def test_table_and_page_take_the_same_attempt(folder: StudyFolder) -> None:
    """Two jobs of one point: the one that failed was the last to be collected."""
    tried = [result(ONE, figures={"total_s": at}) for at in (1.0, 2.0)]
    folder.append(*tried, result(ONE, "failed"), result(TWO, "failed", reason="a"), result(TWO, "failed", reason="b"))
    counted = folder.last_results()
    assert counted[ONE.key, 0]["figures"] == {"total_s": 2.0} and counted[TWO.key, 0]["reason"] == "b"
    assert folder.missing([ONE, TWO]) == [TWO]
    shown = read_folder(folder.path).results
    assert [(one.ok, one.reason, one.measures) for one in shown] == [
        (one["status"] == "ok", one["reason"], one["figures"]) for one in counted.values()
    ]


def test_a_cut_last_line_is_dropped_and_said(folder: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.append(result(ONE))
    with (folder.path / "results.jsonl").open("a") as file:
        file.write(json.dumps(result(TWO))[:40])
    assert folder.missing([ONE, TWO]) == [TWO] and len(folder.results()) == 1
    assert capsys.readouterr().err.count("results.jsonl: its last line was cut off and is left out") == 1
    folder.append(result(TWO))
    assert [one["key"] for one in folder.results()] == [ONE.key, TWO.key]
    assert capsys.readouterr().err == ""


def test_a_last_line_without_its_end_is_kept(folder: StudyFolder) -> None:
    (folder.path / "results.jsonl").write_text(json.dumps(result(ONE)))
    folder.append(result(TWO))
    assert folder.missing([ONE, TWO]) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 was cut off and is left out"),
        ("[1]", "line 1 was cut off and is left out"),
        (json.dumps(result(ONE, study="weak")), "1 of its lines belongs to another study and is left out"),
        (json.dumps(result(Point(settings={"ranks": 9}))), "1 of its lines belongs to another study and is left out"),
        (json.dumps({"schema": 2, "study": "strong"}), "1 of its lines belongs to another study and is left out"),
    ],
)
def test_a_line_that_is_none_of_this_study_s_is_left_out_and_said(
    folder: StudyFolder, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    """What was measured beside it counts."""
    (folder.path / "results.jsonl").write_text(f"{line}\n{json.dumps(result(TWO))}\n")
    assert [one["key"] for one in folder.results()] == [TWO.key] and folder.missing([ONE, TWO]) == [ONE]
    assert capsys.readouterr().err.count(said) == 1, "once, however often it is read"


@pytest.mark.parametrize("other", [{"kind": "weak"}, {"benchmark": "p1b1"}, {"fixed": {"epochs": 8}}, {"preset": "demo"}])
def test_another_study_in_the_same_folder_is_refused(folder: StudyFolder, other: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"holds another study.*{next(iter(other))}.*Choose another --out"):
        folder.write_plan(plan(ONE, **other))


def test_a_study_can_be_extended(folder: StudyFolder) -> None:
    created = folder.plan()["created"]
    four = Point(settings={"ranks": 4})
    folder.write_plan(plan(ONE, four))
    assert [point["settings"]["ranks"] for point in folder.plan()["points"]] == [2, 1, 4]
    assert folder.plan()["created"] == created


def test_lists_of_the_command_line_are_the_same_study_again(folder: StudyFolder) -> None:
    dense = {"dense": (200, 20)}  # what --set dense=200,20 is
    path = StudyFolder(folder.path.with_name("lists"))
    for _ in range(2):
        path.write_plan(plan(ONE, fixed=dense))
    assert path.plan()["fixed"] == {"dense": [200, 20]}


def test_every_attempt_has_a_folder_of_its_own(folder: StudyFolder) -> None:
    names = [folder.new_run(ONE) for _ in range(3)]
    assert names == [f"points/{ONE.name}", f"points/{ONE.name}-2", f"points/{ONE.name}-3"]


def test_two_studies_do_not_write_into_one_folder(folder: StudyFolder) -> None:
    with folder.locked(), pytest.raises(DataError, match="another study is writing"), folder.locked():
        pass


def test_the_directory_of_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "report.html").write_text("the run's")
    folder = StudyFolder(tmp_path)
    for refused in (lambda: folder.check_same(plan(ONE)), lambda: folder.write_plan(plan(ONE)), lambda: folder.locked().__enter__()):
        with pytest.raises(DataError, match=r"is the directory of a run: it has run.json. Choose another --out"):
            refused()
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "report.html"}


def test_a_plan_of_an_older_version_is_read_and_not_gone_on_with(folder: StudyFolder) -> None:
    file = folder.path / "study.json"
    file.write_text(file.read_text().replace('"schema": 2', '"schema": 1'))
    assert len(folder.plan()["points"]) == 2 and folder.study().kind == "strong"
    with pytest.raises(DataError, match=r"older version \(schema 1\).*Choose another --out"):
        folder.write_plan(plan(ONE, TWO))


def test_folders_without_a_study(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no study.json"):
        StudyFolder(tmp_path).plan()
    (tmp_path / "study.json").write_text('{"schema": 99}')
    with pytest.raises(DataError, match=r"schema 99, this version reads 1 and 2. .* version of farandole that wrote it"):
        StudyFolder(tmp_path).plan()


@pytest.mark.parametrize("words", [["table"], ["collect"], ["compare", "theta-2018-table4"], ["beside", "theta-2018-table4"]])
def test_an_empty_folder_holds_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    verb, *rest = words
    assert main(["study", verb, str(tmp_path), *rest]) == 1
    told = capsys.readouterr().err
    assert ("holds no study" in told or "has neither study.json nor run.json" in told) and len(told.splitlines()) == 1
