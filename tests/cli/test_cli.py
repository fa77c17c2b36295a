"""The `farandole` command: help that teaches, errors without tracebacks."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest


def farandole(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=cwd, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_version() -> None:
    assert farandole("--version").stdout == f"farandole {version('farandole')}\n"


@pytest.mark.parametrize("words", [["--help"], ["launch", "--help"]])
def test_help_shows_a_command_to_type(words: list[str]) -> None:
    told = farandole(*words)
    assert told.returncode == 0
    assert "farandole launch -n 4 -- python train.py" in told.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch"], "no command was given"),
        (["launch", "--", "true"], "farandole launch -n 2 -- true"),
        (["launch", "-n", "2", "--", "no-such-program"], "'no-such-program' is not a program"),
        (["launch", "-H", "a:many", "true"], "'many' slots"),
        (["launch", "--hostfile", "none", "true"], "--hostfile none: cannot be read"),
        (["launch", "-n", "2", "--threads", "0", "true"], "threads=0"),
        (["launch", "-n", "2", "--restarts", "-3", "true"], "restarts=-3"),
        (["launch", "-np", "2", "--min-np", "1", "true"], "can neither grow nor shrink. With --restarts"),
        (["launch", "-np", "2", "--no-stall-check", "--stall-abort", "5", "true"], "exclude each other"),
    ],
)
def test_mistakes_are_explained_in_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("farandole: ")
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_check_build_is_what_the_doctor_says(tmp_path: Path) -> None:
    told = farandole("launch", "--check-build", cwd=tmp_path)
    assert told.returncode == 0, told.stdout
    assert "+ ring test" in told.stdout


def test_a_script_that_is_not_executable_is_run_by_this_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    told = farandole("launch", "-n", "1", "train.py", "-n", "--", "x", cwd=tmp_path)
    assert told.stdout == f"{sys.executable} ['-n', '--', 'x']\n"


def test_timeline_merge_says_when_there_is_nothing_to_merge(tmp_path: Path) -> None:
    told = farandole("timeline", "merge", str(tmp_path / "t.json"))
    assert told.returncode == 1
    assert "no parts" in told.stderr


def test_timeline_merge_makes_one_file(tmp_path: Path) -> None:
    record = (
        "from farandole.observe import timeline; import sys\n"
        "timeline.start(sys.argv[1], rank=0, size=1, host='h'); timeline.span('t', 'WORK', 1000, 2000); timeline.stop()"
    )
    target = tmp_path / "t.json"
    subprocess.run([sys.executable, "-c", record, str(target)], check=True, timeout=60)
    told = farandole("timeline", "merge", str(target))
    assert told.returncode == 0, told.stderr
    assert "WORK" in [event.get("name") for event in json.loads(target.read_text())]
