"""The line between launcher and workers."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from farandole.launch.channel import ADDRESS, KEY, Link, Switchboard, call_launcher


@pytest.fixture(params=["unix", "tcp"])
def board(request: pytest.FixtureRequest) -> Iterator[Switchboard]:
    with TemporaryDirectory(prefix="fd") as folder:
        found = Switchboard(Path(folder) / "socket", ["127.0.0.1"] if request.param == "tcp" else [])
        yield found
        found.close()


def next_caller(board: Switchboard) -> Link:
    while not (callers := board.accept()):
        assert wait(board.watched, 30.0), "nobody called"
    (caller,) = callers
    return caller


def test_a_worker_with_the_key_is_let_in(board: Switchboard) -> None:
    with ThreadPoolExecutor() as pool:
        calling = pool.submit(call_launcher, board.variables())
        with next_caller(board) as here, calling.result(30) as there:
            there.send(("hello", 1))
            assert here.recv() == ("hello", 1)


def test_others_are_turned_away_and_hold_nobody_up(board: Switchboard) -> None:
    kind, address = board.variables()[ADDRESS].split(" ")
    silent = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    silent.connect(address if kind == "unix" else ("127.0.0.1", int(address.rpartition(":")[2])))
    with silent, ThreadPoolExecutor() as pool:
        stranger = pool.submit(call_launcher, board.variables() | {KEY: "00" * 32})
        worker = pool.submit(call_launcher, board.variables())
        with next_caller(board), worker.result(30):
            while not stranger.done():  # it may call after the worker was let in
                wait(board.watched, 0.1)
                assert board.accept() == []
            with pytest.raises(ConnectionError):
                stranger.result()


def test_nobody_answers(board: Switchboard) -> None:
    variables = board.variables()
    board.close()
    with pytest.raises(OSError):
        call_launcher(variables)
