"""Studies of small programs, run to their end: what is kept of every point, and what is not mixed."""

import json
import os
import pty
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.errors import DataError, SettingsError
from farandole.report import write_page_if_possible
from farandole.study.folder import StudyFolder
from farandole.study.pointrun import PointRunner
from farandole.study.points import Point, usable_cores
from farandole.study.running import plan_text, run_study, table_of
from farandole.study.settings import StudySettings
from powertree import Machine

# A program that says with how many threads it is to compute.
THREADS = "import json, os; json.dump({'threads': int(os.environ['OMP_NUM_THREADS'])}, open(os.environ['FARANDOLE_FIGURES'], 'w'))"


def asked(command: str, **given: Any) -> StudySettings:
    return StudySettings(**{"kind": "strong", "command": command, "axes": {"ranks": [1]}, "repeats": 1, "threads": 1, **given})


def run(study: StudySettings, folder: StudyFolder, *words: str, power: bool = False, mixed: bool = False) -> int:
    return run_study(study, folder, command=["study", *words], power=power, pages=write_page_if_possible, mixed=mixed)


def one_point(folder: Path, command: str, **given: Any) -> dict[str, Any]:
    return PointRunner(folder=StudyFolder(folder), kind="strong", power=False).run(Point(settings={"command": command, "ranks": 1, "nodes": 1, **given}))


def test_one_point_is_no_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, study = StudyFolder(tmp_path), asked("true {ranks}")
    assert "strong scaling: 1 point, 0 have a result already" in plan_text(study, folder)
    for _ in range(2):
        assert run(study, folder) == 0
    assert f"1 of 1 point has a result in {tmp_path} already" in capsys.readouterr().err
    assert "1 point, 1 has a result already" in plan_text(study, folder)
    words = ["study", "strong", "--command", "true {ranks}", "--ranks", "1", "--threads", "1", "--out", str(tmp_path), "--submit", "sbatch"]
    assert main(words) == 0
    assert f"the point has a result in {tmp_path}: there is nothing to submit" in capsys.readouterr().out


def test_a_dry_run_tells_repeats_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "strong", "--command", "train", "--ranks", "1", "--repeats", "3", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert [f"1 rank, repeat {number}  about" in told for number in (1, 2, 3)] == [True, True, True]
    assert told.count("about 60 s") == 3


def test_repeats_are_told_apart_while_they_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three by default: once a program has shown that it is short."""
    assert run(asked("true {ranks}", repeats=0), StudyFolder(tmp_path)) == 0
    told = capsys.readouterr()
    assert [words in told.err for words in ("1/1 1 rank: ", "1/2 1 rank, repeat 2: ", "2/2 1 rank, repeat 3: ")] == [True, True, True]
    assert "medians of 3 runs a case" in told.out


def test_results_keep_what_they_were_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study typed again with more points, after a commit."""
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    folder, commits = StudyFolder(tmp_path / "s"), []
    for batches in ([1], [1, 2]):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
        commits.append(subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip())
        study = asked("true {ranks} {batch_size}", kind="batch", axes={"batch_size": batches})
        assert run(study, folder, "batch", f"--batches={batches[-1]}") == 0
    told = [(one["settings"]["batch_size"], one["made_with"]["command"], one["made_with"]["git"]["commit"]) for one in folder.results()]
    assert told == [(number, f"farandole study batch --batches={number}", commits[number - 1]) for number in (1, 2)]
    assert folder.results()[0]["made_with"]["environment"]["packages"]["farandole"]
    assert folder.plan()["command"] == "farandole study batch --batches=2"
    page = (folder.path / "report.html").read_text()
    for shown in ('data-text="farandole study batch --batches=1"', 'data-text="farandole study batch --batches=2"', "; ".join(commits), "2 commits"):
        assert shown in page


# What is not mixed


def test_results_of_other_versions_are_not_added_to_unless_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = StudyFolder(tmp_path)
    assert run(asked("true {ranks}"), folder) == 0
    results = tmp_path / "results.jsonl"
    line = json.loads(results.read_text())
    assert line["made_with"]["environment"]["packages"].keys() >= {"torch", "keras", "numpy"}
    line["made_with"]["environment"]["packages"]["torch"] = "1.0.0"
    results.write_text(json.dumps(line) + "\n")
    more = asked("true {ranks}", axes={"ranks": [1, 2]})
    with pytest.raises(SettingsError, match=r"made with other versions: torch 1\.0\.0, now .*--mixed-versions, or choose another --out"):
        run(more, folder)
    assert len(folder.results()) == 1 and len(folder.plan()["points"]) == 1
    words = ["study", "strong", "--command", "true {ranks}", "--ranks", "1,2", "--repeats", "1", "--threads", "1", "--no-power", "--out", str(tmp_path)]
    assert main(words) == 2 and "torch 1.0.0" in capsys.readouterr().err
    assert main([*words, "--mixed-versions"]) == 0 and len(folder.results()) == 2


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2)])
def test_on_a_terminal_it_is_asked_whether_versions_may_mix(tmp_path: Path, answer: str, code: int) -> None:
    folder = StudyFolder(tmp_path)
    assert run(asked("true {ranks}"), folder) == 0
    results = tmp_path / "results.jsonl"
    results.write_text(results.read_text().replace('"mpi4py": "', '"mpi4py": "0.'))
    words = ["study", "strong", "--command", "true {ranks}", "--ranks", "1,2", "--repeats", "1", "--threads", "1", "--no-power", "--out", str(tmp_path)]
    ours, terminal = pty.openpty()
    os.write(ours, answer.encode())
    with subprocess.Popen([sys.executable, "-m", "farandole", *words], stdin=terminal, stderr=terminal, stdout=subprocess.DEVNULL) as study:
        os.close(terminal)
        assert study.wait(60) == code
    said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "made with other versions: mpi4py 0." in said and "Mix them? [y/N]" in said
    assert len(folder.results()) == (2 if code == 0 else 1)


def test_what_has_failed_under_other_versions_is_no_mixture(tmp_path: Path) -> None:
    folder, study = StudyFolder(tmp_path), asked("false {ranks}")
    assert run(study, folder) == 1
    results = tmp_path / "results.jsonl"
    line = json.loads(results.read_text())
    line["made_with"]["environment"]["python"] = "3.0"
    results.write_text(json.dumps(line) + "\n")
    assert run(study, folder) == 1 and len(folder.results()) == 2, "tried again"


def test_a_folder_of_an_older_version_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    folder, study = StudyFolder(tmp_path), asked("true {ranks}")
    assert run(study, folder) == 0
    for name in ("study.json", "results.jsonl"):
        file = tmp_path / name
        file.write_text(file.read_text().replace('"schema": 2', '"schema": 1'))
    assert "1 rank" in table_of(folder, "text")
    with pytest.raises(DataError, match=r"older version \(schema 1\).*Choose another --out"):
        run(study, folder)
    with pytest.raises(DataError, match="older version"):
        plan_text(study, folder)


# Threads


def test_more_ranks_have_the_threads_of_those_before(tmp_path: Path) -> None:
    """Also where they no longer have a core for each: otherwise nothing of before could be compared."""
    first = asked("true {ranks}", threads="auto", out=tmp_path)
    assert run(first, StudyFolder(tmp_path)) == 0
    more = asked("true {ranks}", axes={"ranks": [1, 2]}, threads="auto", out=tmp_path)
    before, after = first.points(), more.points()
    assert {point.key for point in before} <= {point.key for point in after} and len({point.settings["threads"] for point in after}) == 1


@pytest.mark.parametrize("program", [f"{sys.executable} -c {shlex.quote(THREADS)}", f"{sys.executable} -c {shlex.quote(THREADS)} {{ranks}}"], ids=["launched", "its own ranks"])
def test_ranks_get_the_threads_of_their_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    folder = StudyFolder(tmp_path)
    study = asked(program, axes={"ranks,threads": [[1, 2], [2, 1]]}, threads="auto")
    assert run(study, folder) == 0
    told = [(one["settings"]["ranks"], one["settings"]["threads"], one["figures"]["threads"]) for one in folder.results()]
    assert told == [(1, 2, 2), (2, 1, 1)]
    assert all(("oversubscribed" in one["marks"]) == (usable_cores() < 2) for one in folder.results())


# What a point's machine tells


def test_joules_above_those_of_the_idle_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that always takes the same: nothing is above idle. It is measured once, before the first point."""
    Machine(tmp_path / "bare").proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path / "bare"))
    given: dict[str, Any] = {"kind": "batch", "axes": {"batch_size": [3, 4]}}
    folder, plain = StudyFolder(tmp_path / "idle"), StudyFolder(tmp_path / "plain")
    assert run(asked("sleep 0.{batch_size} {ranks}", **given, idle_s=0.5), folder, power=True) == 0
    reports = [json.loads((folder.path / one["run"] / "power.json").read_text()) for one in folder.results()]
    assert reports[0]["idle"] == reports[1]["idle"] and reports[0]["idle"]["duration_s"] == pytest.approx(0.5, abs=0.2)
    for one in folder.results():
        figures = one["figures"]
        assert figures["idle_w"] == pytest.approx(figures["power_w"], rel=0.01) and figures["energy_j"] > 0
        assert abs(figures["above_idle_j"]) < 0.01 * figures["energy_j"]
    assert "above idle J" in table_of(folder, "text") and "above_idle_j" in table_of(folder, "csv")

    assert run(asked("true {ranks} {batch_size}", **given), plain, power=True) == 0
    (one, _) = plain.results()
    assert one["figures"]["above_idle_j"] is None and one["reasons"]["above_idle_j"] == "the idle node was not measured (--idle)"
    assert "above idle" not in table_of(plain, "markdown")


@pytest.mark.parametrize("hosts", ["big:8", "big:4,other:4"])
def test_of_other_machines_neither_cores_nor_meters_are_known_here(tmp_path: Path, hosts: str) -> None:
    """There is no such host, so that the point fails; what is said of this machine would be said all the same."""
    (point,) = asked("train", axes={"ranks": [8]}, hosts=hosts).points()
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", hosts=hosts).run(point)
    assert_nothing_is_said_of_this_machine(tmp_path, found)


def test_of_a_job_s_nodes_the_login_node_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").write_text("elsewhere\n")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    runner = PointRunner(folder=StudyFolder(tmp_path), kind="strong", idle_s=60.0)
    found = runner.run(Point(settings={"command": "train", "ranks": 1000, "nodes": 1}))
    assert_nothing_is_said_of_this_machine(tmp_path, found)


def assert_nothing_is_said_of_this_machine(folder: Path, found: dict[str, Any]) -> None:
    assert found["status"] == "failed" and found["marks"] == []
    assert not (folder / found["run"] / "power.json").exists(), "its meters were not read"
    for name in ("cpu_s", "others_share"):
        assert found["figures"][name] is None and "other machines" in found["reasons"][name]
    assert found["figures"]["energy_j"] is None and "a program of your own is sampled only" in found["reasons"]["energy_j"]


def test_what_is_on_this_machine_under_its_name_is_seen(tmp_path: Path) -> None:
    hosts = f"{socket.gethostname()}:1"
    (point,) = asked("true", hosts=hosts).points()
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", hosts=hosts, power=False).run(point)
    assert found["status"] == "ok" and found["figures"]["cpu_s"] > 0


def test_what_others_do_meanwhile_is_seen(tmp_path: Path) -> None:
    # A program of somebody else's: no child of this one's, and gone by itself.
    subprocess.run(f"timeout 5 {sys.executable} -c 'while True: pass' >/dev/null 2>&1 &", shell=True, check=True)
    share = one_point(tmp_path, "sh -c 'sleep 1' {ranks}")["figures"]["others_share"]
    assert 0.25 / (os.cpu_count() or 1) < share <= 1, "it had a quarter of a core or more"


# What makes a point fail, and it alone


@pytest.mark.parametrize(
    "told", [{"samples": "100"}, {"test_accuracy": "0.9"}, {"loss": [1.0]}, {"loss": True}, {"metric": 3}, {"samples": 0}, {"speed": 1}, [1]]
)
def test_figures_that_are_none_fail_the_point_alone(tmp_path: Path, told: Any) -> None:
    program = f"echo '{json.dumps(told)}' > $FARANDOLE_FIGURES"
    found = one_point(tmp_path, f"sh -c {shlex.quote(program)} {{ranks}}")
    assert found["status"] == "failed" and ("expected" in found["reason"] or "unknown figure speed; known: total_s" in found["reason"])


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sh -c 'kill -9 $$' {ranks}", "exit code -9"), ("sh -c 'echo no luck; exit 3' {ranks}", "exit code 3: no luck"),
        ("no-such-program {ranks}", "no-such-program"), ("sh -c 'echo { > $FARANDOLE_FIGURES' {ranks}", "figures.json: no JSON"),
    ],
)  # fmt: skip
def test_a_program_that_ends_badly_is_a_failed_point(tmp_path: Path, command: str, reason: str) -> None:
    found = one_point(tmp_path, command)
    assert found["status"] == "failed" and reason in found["reason"]
    assert found["figures"]["total_s"] is None and (tmp_path / found["run"] / "console.txt").exists()


TIMELINE = """
import os, time
from pathlib import Path
from farandole.observe import timeline

path = Path(os.environ["FARANDOLE_TIMELINE"])
timeline.start(path, rank=0, size=1, host="n")
timeline.span("training", "FORWARD", time.monotonic_ns(), time.monotonic_ns() + 1)
timeline.stop()
(path / "taken").mkdir(parents=True)
"""


def test_a_timeline_that_cannot_be_merged_fails_its_point_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TIMELINE)
    found = one_point(tmp_path, f"{sys.executable} {tmp_path / 'train.py'} {{ranks}}")
    assert found["status"] == "failed" and "merging 1 parts failed" in found["reason"]


def test_where_no_result_can_be_written_any_more_those_before_stay(tmp_path: Path) -> None:
    """As on a full disk: no file may grow beyond 12 KiB, which are two results and a part of the third."""
    words = ["study", "batch", "--command", "true {ranks} {batch_size}", "--batches", "1,2,3,4,5,6", "--repeats", "1", "--no-power", "--out", "s"]
    limited = f"ulimit -f 24; exec {shlex.join([sys.executable, '-m', 'farandole', *words])}"
    told = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert told.returncode == 1 and told.stderr.splitlines()[-1].startswith("farandole: s/results.jsonl cannot be written: ")
    folder = StudyFolder(tmp_path / "s")
    before = [one["key"] for one in folder.results()]
    assert len(before) in (1, 2, 3, 4)
    again = subprocess.run([sys.executable, "-m", "farandole", *words], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert again.returncode == 0 and f"{len(before)} of 6 points ha" in again.stderr
    assert [one["key"] for one in folder.results()][: len(before)] == before and len(folder.results()) == 6
