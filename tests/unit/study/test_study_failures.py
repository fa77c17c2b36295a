"""Why a point has failed, from what its command has said."""

import sys
from pathlib import Path

import pytest

from farandole.study.failures import why_failed
from farandole.study.folder import StudyFolder
from farandole.study.pointrun import PointRunner
from farandole.study.points import Point

TRACEBACK = """\
Traceback (most recent call last):
  File "bad.py", line 3, in <module>
    read()

  File "bad.py", line 2, in read
ValueError: the data file is corrupt
"""
CORRUPT = "ValueError: the data file is corrupt"


def of_rank(rank: int, text: str) -> str:
    return "".join(f"[{rank}] {line}\n" for line in text.splitlines())


def test_warnings_are_no_reason() -> None:
    blamed = f"farandole: rank 3 failed: exit code 1\n  host    vm, pid 7\n  error   {CORRUPT}\n  repeat  farandole launch\n"
    told = why_failed(f"farandole: 4 ranks share 2 cores\n{of_rank(3, TRACEBACK)}{blamed}", 1)
    assert told == f"rank 3 failed: exit code 1: {CORRUPT}"
    alone = f"{TRACEBACK}farandole: rank 0 failed: exit code 1\n  host    vm, pid 7\n"
    assert why_failed(alone, 1) == f"rank 0 failed: exit code 1: {CORRUPT}"


def test_the_rank_that_is_blamed_is_the_one_that_tells() -> None:
    said = of_rank(1, TRACEBACK) + of_rank(0, "Traceback (most recent call last):\n  File x\nKeyError: 'a later one'\n")
    assert why_failed(f"{said}farandole: rank 1 failed: exit code 1\n  host    vm\n", 1) == f"rank 1 failed: exit code 1: {CORRUPT}"


def test_of_several_starts_the_last_has_failed() -> None:
    said = "farandole: rank 1 failed: killed by SIGKILL\nfarandole: starting again (1 of 1 restarts)\n"
    told = why_failed(f"{said}[0] epoch 1\nfarandole: rank 0 failed: killed by SIGSEGV\n  host    vm\n", 139)
    assert told == "rank 0 failed: killed by SIGSEGV", "what it printed before is no reason"


def test_our_own_words_come_without_our_name() -> None:
    blamed = "farandole: rank 0 failed: exit code 2\n  error   farandole: a batch of 5000 does not fit\n"
    assert why_failed(f"[0] farandole: a batch of 5000 does not fit\n{blamed}", 2) == (
        "rank 0 failed: exit code 2: a batch of 5000 does not fit"
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "exit code 1: it said nothing"),
        (f"epoch 1\n{TRACEBACK}", f"exit code 1: {CORRUPT}"),
        (f"{TRACEBACK}a library takes its leave\n", f"exit code 1: {CORRUPT}"),
        (f"{TRACEBACK}and on it goes\nfarandole: this cannot be\n", "exit code 1: farandole: this cannot be"),
        ("farandole: no ranks\n  repeat  farandole launch\n  check   farandole doctor\n", "exit code 1: farandole: no ranks"),
        ("farandole: 4 ranks share 2 cores\n", "exit code 1: it said nothing"),
        ("farandole: 4 ranks share 2 cores\n[1] no data\nfarandole: rank 1 failed: exit code 1\n", "rank 1 failed: exit code 1: no data"),
        ("no data\nfarandole: rank 0 failed: exit code 1\n", "rank 0 failed: exit code 1: no data"),
        ("farandole: 4 ranks share 2 cores\nfarandole: rank 1 failed: exit code 1\n", "rank 1 failed: exit code 1"),
        ("  File x\nSyntaxError: invalid syntax\n", "exit code 1: SyntaxError: invalid syntax"),
    ],
)
def test_what_other_programs_say(said: str, told: str) -> None:
    assert why_failed(said, 1) == told


def test_the_reason_of_a_point(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('the data file is corrupt')\n")
    point = Point(settings={"command": f"{sys.executable} {tmp_path / 'bad.py'}", "ranks": 1, "nodes": 1})
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", power=False).run(point)
    assert (found["status"], found["reason"]) == ("failed", f"rank 0 failed: exit code 1: {CORRUPT}")
