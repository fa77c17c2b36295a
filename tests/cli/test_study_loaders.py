"""`farandole study loaders`: tables and results, resumed, with what could not be measured said."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from farandole.comm.watchdog import alive
from farandole.data.make import make
from farandole.launch.processes import descendants
from farandole.study import loaders
from farandole.study.folder import StudyFolder
from farandole.study.loaders import LoaderStudy
from farandole.study.loaders_plan import plan_text
from farandole.study.pages import forget_pages, held_share
from farandole.study.running import summary
from ranktest.processes import wait_until
from studycommand import children, farandole, stopped

pytest.importorskip("numba")
pytest.importorskip("pandas")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def study(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return farandole("study", "loaders", *words, "--out", str(out), cwd=out)


def results(out: Path) -> list[dict[str, Any]]:
    return list(StudyFolder(out).last_results().values())


def run(small: LoaderStudy, expect: int = 0) -> str:
    """Without a process of its own: what the study says in the end."""
    folder = StudyFolder(small.out)
    assert loaders.run(small, folder, ["study", "loaders", *small.benchmarks]) == expect
    return summary(folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make("nt3", tmp_path / "data", rows=32, features=80)
    return tmp_path / "data"


def test_a_dry_run_says_what_would_be_read_and_makes_nothing(tmp_path: Path, data: Path) -> None:
    there = {path.name for path in tmp_path.iterdir()}
    small = LoaderStudy(benchmarks=["nt3"], out=tmp_path / "out", data_dir=data, loaders=["pandas", "fast"])
    told = plan_text(small)
    size = (data / "nt_train2.csv").stat().st_size
    # pandas, fast and the two ways of its cache on both files; three of them by two at once on the larger one
    assert told.startswith("Loaders compared: 11 measurements, 0 have a result already")
    assert f"nt_train2.csv  {size / 1e6:.1f} MB" in told and "to be made" not in told
    assert "read with pandas, fast, " in told and "each cold and warm, 1 time: " in told
    assert " of text to read, about 22 s in all (a guess" in told, "a second a reading: the files are small"
    missing = plan_text(LoaderStudy(benchmarks=["nt3"], out=tmp_path / "out", preset="paper", loaders=["fast"]))
    assert "nt_train2.csv  about 596." in missing and missing.count(" MB, to be made") == 2
    assert {path.name for path in tmp_path.iterdir()} == there
    shown = study(tmp_path, "nt3", "--data-dir", str(data), "--loaders", "pandas", "--dry-run")
    assert shown.returncode == 0 and "nt_test2.csv" in shown.stdout and not (tmp_path / "study.json").exists()


@pytest.mark.more
def test_tables_and_results_and_nothing_measured_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make("nt3", data, rows=512, features=4000)
    words = ("nt3", "--data-dir", str(data), "--loaders", "pandas,fast")
    told = study(tmp_path, *words)
    assert told.returncode == 0, told.stderr
    for shown in ("fast-storing", "fast-cached", "nt_test2.csv", "at once", "fast compiles once", "base case: pandas"):
        assert shown in told.stdout
    page = tmp_path / "report.html"
    assert told.stdout.endswith(f"page      {page}\n") and "NT3: " in page.read_text()
    assert max(len(line) for line in told.stdout.partition("\nNT3: ")[0].splitlines()) <= 100
    assert "s left" in told.stderr
    first = results(tmp_path)
    # 4 methods x 2 files x 2 states; 2 ranks: 3 methods (none that writes a cache) x 1 file x 2 states
    assert len(first) == 4 * 2 * 2 + 3 * 2
    for result in first:
        figures, settings = result["figures"], result["settings"]
        assert result["status"] == "ok" and result["reason"] is None
        assert min(figures["load_s"], figures["mb_per_s"]) > 0 and 0 <= figures["others_share"] <= 1
        assert (figures["rows"], figures["columns"]) == (512 if settings["role"] == "train" else 128, 4000)
        # 4 bytes a value, once for all ranks where ours reads; pandas has a table in each process, and megabytes besides.
        table_bytes = 4 * 4000 * figures["rows"]
        ours = settings["loader"].startswith("fast")
        least_bytes = table_bytes if ours else settings["ranks"] * table_bytes
        most_bytes = table_bytes if ours else 10 * settings["ranks"] * table_bytes
        other_bytes = settings["ranks"] << 21  # stacks, and what the allocator keeps or gives back meanwhile
        assert least_bytes - other_bytes < figures["held_bytes"] < most_bytes + other_bytes, result
    plan = StudyFolder(tmp_path).plan()
    assert plan["compile_s"] > 0
    assert plan["command"].startswith("farandole study loaders nt3 --data-dir ")
    assert plan["environment"]["packages"]["pandas"] == first[0]["settings"]["version"]
    assert first[0]["made_with"] == {name: plan[name] for name in ("command", "environment", "git")}

    again = study(tmp_path, *words, "--json")
    assert "11 of 11 measurements are in" in again.stderr
    assert json.loads(again.stdout)["results"] == first

    os.utime(data / "nt_test2.csv", ns=(1, 1))
    changed = study(tmp_path, *words)
    assert "7 of 11 measurements are in" in changed.stderr
    assert changed.stdout.count("nt3 nt_test2.csv: ") == 1, "of a file that has changed, the last figures count"


def test_missing_files_are_made(tmp_path: Path) -> None:
    told = study(tmp_path, "p1b3", "--loaders", "pandas", "--ranks", "1")
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "data" / "test" / "P1B3_dose_response.csv").is_file()
    assert {result["settings"]["role"] for result in results(tmp_path)} == {"dose_response", "expressions", "descriptors"}


def test_what_cannot_be_read_has_failed_with_the_reason(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "compile_seconds", lambda: 1.0)  # measured above, and takes long
    with (data / "nt_test2.csv").open("a") as file:
        file.write("1,2\n")
    told = run(LoaderStudy(benchmarks=["nt3"], out=tmp_path, data_dir=data, loaders=["fast"], ranks=[1]), expect=1)
    assert "failed: nt3 test, fast: DataError" in told
    bad = [result for result in results(tmp_path) if result["settings"]["role"] == "test"]
    assert bad
    for result in bad:
        assert result["status"] == "failed" and result["figures"] == {}
        assert "line 9" in result["reason"]
    assert all(result["figures"]["load_s"] for result in results(tmp_path) if result["settings"]["role"] == "train")


def test_a_loader_that_is_not_installed_is_listed_as_such(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "installed", lambda name: None)
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    told = run(LoaderStudy(benchmarks=["nt3"], out=tmp_path, data_dir=data, loaders=["polars"], ranks=[1, 9999]), expect=1)
    assert [result["status"] for result in results(tmp_path)] == ["failed"] * 6
    assert "study: warning: 9999 ranks on" in shown.getvalue() and "\rstudy: 1/3 nt_train2.csv polars: 0 s, about " in shown.getvalue()
    assert "failed: nt3 train, polars: not installed; type: pip install 'farandole[loaders]'" in told
    assert "No file has been read: not installed" in told
    run(LoaderStudy(benchmarks=["nt3"], out=tmp_path / "all", data_dir=data, ranks=[1]))  # nobody has named it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nt4"], "nt3, p1b1, p1b2, p1b3"),
        (["nt3", "--loaders", "duckdb"], "pandas, pandas-chunked, dask, polars, pyarrow, fast"),
        (["nt3", "--ranks", "0"], "--ranks 1,2"),
        (["nt3", "--ranks", "two"], "--ranks 1,2"),
        (["nt3", "--repeats", "0"], "repeats=0"),
    ],
)
def test_mistakes_are_explained_in_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    told = study(tmp_path, *words)
    assert told.returncode == 2
    assert told.stderr.startswith("farandole: ")
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["[1, 2", '{"schema": 1, "kind": "strong", "title": "NT3", "points": []}'])
def test_a_folder_of_something_else_is_refused_before_files_are_made(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.json").write_text(content)
    told = study(tmp_path, "nt3")
    assert told.returncode == 1
    assert "hoose another" in told.stderr and len(told.stderr.splitlines()) == 1
    assert (tmp_path / "study.json").read_text() == content and not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_there_is_and_ends_every_process(tmp_path: Path, data: Path, number: int) -> None:
    words = ("nt3", "--data-dir", str(data), "--loaders", "pandas", "--ranks", "1", "--repeats", "500")
    nursery: list[int] = []

    def reading(pid: int) -> bool:
        nursery[:] = children(pid) if (tmp_path / "study.json").exists() else []
        return bool(nursery)

    code, said = stopped("study", "loaders", *words, "--out", str(tmp_path), cwd=tmp_path, when=reading, number=number)
    assert code == 128 + number
    assert "type the same again to go on" in said
    # One that was just being started is not waited for: it ends when it finds its input closed.
    deadline = time.monotonic() + 30
    while left := [pid for pid in nursery if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert all(result["status"] == "ok" for result in results(tmp_path))


def test_a_reading_ends_with_a_study_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1.5,2.5\n" * 5_000_000)
    turn = {"method": "pandas", "path": "t.csv", "columns": [], "header": False, "delimiter": ",", "na": [], "cache": ""}
    script = f"from farandole.study.nursery import Nursery, Turn\nNursery('pandas').measure(Turn(**{turn}, cold=False), 2, 100)"
    study = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path)})
    readers: list[int] = []

    def all_read() -> bool:
        readers[:] = descendants(study.pid)
        return len(readers) == 3  # the nursery comes first

    try:
        assert wait_until(all_read, 60)
        for reader in readers[1:]:
            os.kill(reader, signal.SIGSTOP)  # a reading that would not end by itself
    finally:
        study.kill()
        study.wait()
    ended = wait_until(lambda: not any(alive(pid) for pid in readers), 20)
    for pid in filter(alive, readers):
        os.kill(pid, signal.SIGKILL)
    assert ended


def test_forgotten_pages_are_gone_until_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 << 20))
    if (reason := forget_pages([path])) is not None:
        pytest.skip(reason)
    assert held_share(path) < 0.05
    path.read_bytes()
    assert held_share(path) > 0.95
