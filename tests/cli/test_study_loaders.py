"""`farandole study loaders`: an ordinary study of one small program, which reads a file cold or warm."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.comm.node.neighbours import alive
from farandole.data.make import make
from farandole.processes.tree import descendants
from farandole.study.folder import StudyFolder
from farandole.study.pages import forget_pages, held_share
from farandole.workloads.finding import tables_of
from ranktest.processes import wait_until
from studycommand import farandole, stopped

pytest.importorskip("numba")
pytest.importorskip("pandas")

MANY = ("--loaders", "pandas", "--ranks", "1", "--repeats", "500")


def results(out: Path) -> list[dict[str, Any]]:
    return list(StudyFolder(out).last_results().values())


def reading(cwd: Path, file: str, *words: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    """The program of every point, by itself."""
    program = [sys.executable, "-m", "farandole.study.reading", "nt3/train", file, "--cache", "cache", *words]
    launch = [sys.executable, "-m", "farandole", "launch", "-n", str(ranks), "--"] if ranks > 1 else []
    environment = os.environ | {"FARANDOLE_FIGURES": str(cwd / "told.json")}
    return subprocess.run([*launch, *program], capture_output=True, text=True, timeout=100, cwd=cwd, env=environment)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make(tables_of("nt3"), tmp_path / "data", rows=32, features=80)
    return tmp_path / "data"


def test_it_leaves_an_ordinary_folder_with_table_and_page_and_reads_nothing_twice(tmp_path: Path) -> None:
    words = ("study", "loaders", "nt3", "--loaders", "pandas,fast", "--ranks", "1", "--repeats", "1", "--out", "s")
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    folder = tmp_path / "s"
    assert (folder / "data" / "test" / "nt_train2.csv").is_file(), "made for it"
    first = results(folder)
    asked = [(loader, file, state) for file in ("nt_train2.csv", "nt_test2.csv") for state in ("cold", "warm") for loader in ("pandas", "fast")]
    assert [tuple(one["settings"][name] for name in ("loader", "file", "state")) for one in first] == asked
    for one in first:
        figures = one["figures"]
        assert one["status"] == "ok" and min(figures["load_s"], figures["mb_per_s"], figures["peak_bytes"]) > 0
        assert figures["mb_per_s"] == pytest.approx(one["settings"]["bytes"] / 1e6 / figures["load_s"])
        assert figures["total_s"] is None and "load_s" in one["reasons"]["total_s"], "most of it is the start of Python"
        assert (folder / one["run"] / "console.txt").exists()
    head = told.stdout.splitlines()[2]
    assert [word for word in ("loader", "file", "state", "load s", "speedup", "read MB/s") if word not in head] == []
    assert "path" not in head and "base cases: the first of each of 4 series" in told.stdout and "too few repeats to tell" in told.stdout
    assert told.stdout.endswith("page      s/report.html\n") and "nt_train2.csv" in (folder / "report.html").read_text()
    assert "1/8 1 rank, file=nt_train2.csv, state=cold, loader=pandas: read in " in told.stderr
    packages = StudyFolder(folder).plan()["environment"]["packages"]
    assert packages["pandas"] and packages.keys() >= {"polars", "numba"}

    again = farandole(*words, cwd=tmp_path)
    assert "8 of 8 points have a result" in again.stderr and again.stdout == told.stdout and results(folder) == first
    assert farandole("study", "table", "s", cwd=tmp_path).stdout.strip() in told.stdout
    os.utime(folder / "data" / "test" / "nt_test2.csv", ns=(1, 1))
    assert "8 points, 8 have a result" in farandole(*words, "--dry-run", cwd=tmp_path).stdout, "the same bytes"
    shutil.rmtree(folder / "data")
    make(tables_of("nt3"), folder / "data" / "test", preset="test", seed=1)
    assert "8 points, 0 have a result" in farandole(*words, "--dry-run", cwd=tmp_path).stdout, "other bytes"


def test_a_dry_run_says_what_would_be_read_and_makes_nothing(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["study", "loaders", "nt3", "--data-dir", str(data), "--loaders", "pandas,fast", "--repeats", "1", "--out", out, "--dry-run"]) == 0
    told = capsys.readouterr().out
    # both on both files, cold and warm; on the larger one by two at once as well
    assert told.startswith("Loaders compared: 12 points, 0 have a result already") and told.count("  2 ranks, file=nt_train2.csv") == 4
    assert main(["study", "loaders", "p1b3", "--preset", "paper", "--loaders", "fast", "--repeats", "1", "--out", out, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert {word for word in told.replace(",", " ").split() if word.startswith("file=")} == {
        "file=P1B3_dose_response.csv", "file=P1B3_cellline_expressions.tsv", "file=P1B3_drug_descriptors.tsv",
    }, told  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize("content", ["[1, 2", '{"schema": 2, "kind": "strong", "title": "NT3", "points": []}'])
def test_a_folder_of_something_else_is_refused_before_files_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "study.json").write_text(content)
    assert main(["study", "loaders", "nt3", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert ("study.json" in told or "hoose another" in told) and len(told.splitlines()) == 1
    assert (tmp_path / "study.json").read_text() == content and not (tmp_path / "data").exists()


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_a_file_is_read_in_the_state_that_was_asked_for(tmp_path: Path, data: Path, state: str) -> None:
    """Several readings in one process, each after the file was put into its state."""
    file = data / "nt_train2.csv"
    if (reason := forget_pages([file])) is not None:
        pytest.skip(reason)
    told = reading(tmp_path, str(file), "--loader", "fast", "--state", state, "--readings", "2")
    assert told.returncode == 0, told.stderr
    found = json.loads((tmp_path / "told.json").read_text())
    assert found == json.loads(told.stdout) and [(one["rows"], one["columns"]) for one in found] == [(32, 80)] * 2
    assert all(one["load_s"] > 0 and one["safe_s"] is None for one in found)


def test_where_pages_cannot_be_dropped_nothing_is_called_cold(data: Path) -> None:
    """Files in memory have nowhere to be dropped to."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no file system in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        shutil.copy(data / "nt_train2.csv", memory)
        told = reading(Path(memory), "nt_train2.csv", "--loader", "fast", "--state", "cold")
    assert told.returncode != 0 and "100% of nt_train2.csv stays in memory" in told.stderr


def test_what_cannot_be_read_says_where(tmp_path: Path, data: Path) -> None:
    with (data / "nt_train2.csv").open("a") as file:
        file.write("1,2\n")
    told = reading(tmp_path, str(data / "nt_train2.csv"), "--loader", "fast")
    assert told.returncode != 0 and told.stderr.splitlines()[-1].startswith("farandole: ") and "line 33" in told.stderr
    assert not (tmp_path / "told.json").exists()


def test_ranks_read_their_cache_together(tmp_path: Path, data: Path) -> None:
    told = reading(tmp_path, str(data / "nt_train2.csv"), "--loader", "fast-cached", "--state", "cold", ranks=2)
    assert told.returncode == 0, told.stderr
    assert json.loads((tmp_path / "told.json").read_text())["load_s"] > 0 and len(list(tmp_path.glob("cache/*.matrix"))) == 1


@pytest.mark.more
def test_the_memory_of_a_table_is_counted(tmp_path: Path) -> None:
    """4 bytes a value: once for all ranks where ours reads; of pandas in each process, with megabytes besides."""
    make(tables_of("nt3"), tmp_path, rows=512, features=4000)
    for method, ranks, tables in (("fast", 1, 1), ("fast", 2, 1), ("fast-cached", 2, 1), ("fast-storing", 1, 1), ("pandas", 2, 2)):
        told = reading(tmp_path, "nt_train2.csv", "--loader", method, "--state", "warm", ranks=ranks)
        assert told.returncode == 0, told.stderr
        found = json.loads((tmp_path / "told.json").read_text())
        assert (found["rows"], found["columns"]) == (512, 4000)
        least = tables * 4 * 512 * 4000
        other = ranks << 21  # stacks, and what the allocator keeps or gives back meanwhile
        most = least if method.startswith("fast") else 10 * least
        assert least - other < found["held_bytes"] < most + other, (method, ranks, found)
        assert (found["safe_s"] is not None) == (method == "fast-storing") and (found["safe_s"] or 1e9) >= found["load_s"]


def test_a_signal_keeps_what_there_is_and_ends_every_process(tmp_path: Path, data: Path) -> None:
    began: list[int] = []

    def reads(pid: int) -> bool:
        began[:] = descendants(pid) if list(tmp_path.glob("s/points/*/console.txt")) else []
        return len(began) > 1

    words = ("study", "loaders", "nt3", "--data-dir", str(data), *MANY, "--out", "s")
    code, said = stopped(*words, cwd=tmp_path, when=reads, number=signal.SIGTERM)
    assert code == 128 + signal.SIGTERM and "type the same again to go on" in said
    assert wait_until(lambda: not any(alive(pid) for pid in began), 30)
    assert all(result["status"] == "ok" for result in results(tmp_path / "s"))


def test_a_reading_ends_with_a_study_that_is_killed(tmp_path: Path, data: Path) -> None:
    words = [sys.executable, "-m", "farandole", "study", "loaders", "nt3", "--data-dir", str(data), *MANY, "--out", "s"]
    study = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    readers: list[int] = []

    def reads() -> bool:
        readers[:] = descendants(study.pid)
        return any(b"farandole.study.reading" in command(pid) and b"launch" not in command(pid) for pid in readers)

    try:
        assert wait_until(reads, 60)
    finally:
        study.kill()
        study.wait()
    ended = wait_until(lambda: not any(alive(pid) for pid in readers), 20)
    for pid in filter(alive, readers):
        os.kill(pid, signal.SIGKILL)
    assert ended


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_forgotten_pages_are_gone_until_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(4 << 20))
    if (reason := forget_pages([path])) is not None:
        pytest.skip(reason)
    assert held_share(path) < 0.05
    path.read_bytes()
    assert held_share(path) > 0.95
