"""Which rank is named when several fail, and in what words."""

from typing import Any, cast

import pytest

from farandole.launch.link import Link
from farandole.launch.messages import Ended, Place, RankException, Started
from farandole.launch.ranks import Rank, first_cause
from farandole.launch.verdict import failure_block

OTHER = RankException("RankFailedError", "rank 1 has exited", consequence=True)
OWN = RankException("ValueError", "bad batch\nof 3", consequence=False)


def rank(number: int, **ended: Any) -> Rank:
    ended = {"failed_at": 100.0} | ended
    place = Place(number, 4, number, 4, "host7")
    return Rank(cast(Link, None), place, 1, started=Started(70 + number, 1, "off"), ended=Ended(**ended))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0), rank(1)], None),
        ([rank(0), rank(1, code=3)], 1),
        ([rank(0, code=1, failed_at=2), rank(1, signal=9, failed_at=1)], 1),
        ([rank(0, code=1, exception=OTHER, failed_at=1), rank(1, signal=9, failed_at=5)], 1),
        ([rank(0, code=1, exception=OTHER, failed_at=1), rank(1, code=1, exception=OWN, failed_at=5)], 1),
        ([rank(0, code=1, exception=OTHER, failed_at=2), rank(1, code=1, exception=OTHER, failed_at=1)], 1),
        ([rank(0, signal=15, stopped=True, failed_at=1), rank(1, code=2, failed_at=5)], 1),
        ([rank(0, code=1, failed_at=5), rank(1, signal=15, stopped=True, exception=OWN, failed_at=1)], 1),
        ([rank(0, code=1, exception=OTHER), rank(1, signal=15, stopped=True, left_at=90.0)], 1),
        ([rank(0, code=1, exception=OTHER), rank(1, left_at=90.0)], 1),
        ([rank(0, left_at=90.0), rank(1, code=1, exception=OWN)], 1),
        ([rank(0, signal=15, stopped=True), rank(1, unfinished="exited (os._exit?)")], 1),
        ([rank(0, signal=11, failed_at=1), rank(1, signal=9, failed_at=2)], 1),
        ([rank(0, signal=6, failed_at=1), rank(1, unfinished="exited (os._exit?)", failed_at=2)], 1),
        ([rank(0, signal=11, failed_at=1), rank(1, code=1, exception=OWN, failed_at=2)], 0),
        ([rank(0, signal=11, failed_at=2), rank(1, signal=11, failed_at=1)], 1),
    ],
)
def test_the_first_cause(ranks: list[Rank], expected: int | None) -> None:
    cause = first_cause(ranks)
    assert (None if cause is None else cause.number) == expected


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        ({"signal": 9}, 137, "killed by SIGKILL (signal 9)"),
        ({"code": 3}, 3, "exit code 3"),
        ({"unfinished": "exited early"}, 1, "exited early, exit code 0"),
        ({"code": 127, "problem": "cannot start 'x'"}, 127, "cannot start 'x'"),
        ({"signal": 63}, 191, "signal 63"),
    ],
)
def test_codes_and_words(ended: dict[str, Any], code: int, words: str) -> None:
    failed = rank(1, **ended)
    assert failed.exit_code == code
    assert words in failed.how()


def test_a_block_says_who_where_why_and_what_to_type() -> None:
    cause = rank(1, code=1, exception=OWN)
    told = failure_block(
        cause, [cause, rank(0, code=1, exception=OTHER)], [], "farandole launch -n 2 -- x"
    ).splitlines()
    assert told[0] == "rank 1 failed: exit code 1"
    assert [line.split(maxsplit=1) for line in told[1:]] == [
        ["host", "host7, pid 71"],
        ["error", "ValueError: bad batch"],
        ["others", "rank 0 (RankFailedError: rank 1 has exited)"],
        ["repeat", "farandole launch -n 2 -- x"],
    ]


def test_without_an_exception_the_last_line_of_stderr_is_shown() -> None:
    told = failure_block(rank(0, code=2, stderr_tail="usage: x\nx: error: no such option\n\n"), [], [], "r")
    assert "error   x: error: no such option" in told


def test_a_missing_mpi_library_is_explained() -> None:
    told = failure_block(
        rank(0, code=1, stderr_tail="RuntimeError: cannot load MPI library\n..."), [], [], "r"
    )
    assert "pip install 'farandole[mpi]'" in told
