"""The line between launcher and workers."""

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from farandole.launch.channel import ADDRESS, KEY, Switchboard, call_launcher
from farandole.launch.link import Forged, Link


@pytest.fixture
def said() -> list[str]:
    """What the launcher tells its user."""
    return []


@pytest.fixture(params=["unix", "tcp"])
def board(request: pytest.FixtureRequest, said: list[str]) -> Iterator[Switchboard]:
    with TemporaryDirectory(prefix="fd") as folder:
        found = Switchboard(Path(folder) / "socket", ["127.0.0.1"] if request.param == "tcp" else [], said.append)
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


def stranger(board: Switchboard) -> socket.socket:
    kind, address = board.variables()[ADDRESS].split(" ")
    end = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    end.connect(address if kind == "unix" else ("127.0.0.1", int(address.rpartition(":")[2])))
    return end


def turned_away(board: Switchboard, said: list[str], why: str) -> None:
    """With a word; and a worker that calls meanwhile is let in."""
    while not said:
        wait(board.watched, 0.1)
        assert board.accept() == []
    assert len(said) == 1
    assert "was turned away: " in said[0] and why in said[0]
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(call_launcher, board.variables())
        next_caller(board).close()
        worker.result(30).close()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: somewhere.example.org\r\n\r\n", "it does not speak as ranks do"),
        (bytes(16) + struct.pack("<I", 0) + bytes(32), "it does not have this job's key"),
        (bytes(16) + struct.pack("<I", 99) + bytes(40), "it has not shown this job's key within 0.3 s"),
        (b"", "it has not shown this job's key within 0.3 s"),
    ],
    ids=["garbage", "no key", "half a frame", "silence"],
)
def test_a_stranger_is_turned_away(
    board: Switchboard, said: list[str], monkeypatch: pytest.MonkeyPatch, words: bytes, why: str
) -> None:
    monkeypatch.setattr("farandole.launch.link.PROOF_S", 0.3)
    with stranger(board) as end:
        end.sendall(words)
        turned_away(board, said, why)


def test_a_worker_of_another_job_is_turned_away(board: Switchboard, said: list[str]) -> None:
    with ThreadPoolExecutor() as pool:
        other = pool.submit(call_launcher, board.variables() | {KEY: "00" * 32})
        turned_away(board, said, "it does not have this job's key")
        with pytest.raises(ConnectionError):
            other.result(30)


def test_what_a_worker_has_said_is_worth_nothing_on_another_connection(board: Switchboard, said: list[str]) -> None:
    with ThreadPoolExecutor() as pool, socket.create_server(("127.0.0.1", 0)) as between, stranger(board) as launcher:
        address = {ADDRESS: f"tcp 127.0.0.1:{between.getsockname()[1]}"}
        worker = pool.submit(call_launcher, board.variables() | address)
        end, _ = between.accept()
        with end:
            heard = relayed(end, launcher, board)
            worker.result(30).close()
    with stranger(board) as again:
        again.sendall(heard)
        turned_away(board, said, "it does not have this job's key")


def relayed(worker: socket.socket, launcher: socket.socket, board: Switchboard) -> bytes:
    """Pass on what the two say until the worker is let in; what it has said."""
    heard = b""
    while not board.accept():
        for source, target in ((worker, launcher), (launcher, worker)):
            while wait([source], 0.05):
                data = source.recv(4096)
                target.sendall(data)
                heard += data if source is worker else b""
    for data in iter(lambda: launcher.recv(4096) if wait([launcher], 0.05) else b"", b""):
        worker.sendall(data)
    return heard


def test_a_message_that_comes_twice_is_refused() -> None:
    ends = socket.socketpair(), socket.socketpair()
    worker, launcher = Link(ends[0][0], b"key", calls=True), Link(ends[1][1], b"key", calls=False)
    between = ends[0][1], ends[1][0]
    for source, target in (between, between[::-1], between):
        target.sendall(source.recv(4096))
        assert worker.take() == launcher.take() == []
    worker.send("once")
    frame = between[0].recv(4096)
    between[1].sendall(frame)
    assert launcher.take() == ["once"]
    between[1].sendall(frame)
    with pytest.raises(Forged, match="sent twice"):
        launcher.take()
    for end in (worker, launcher, *between):
        end.close()


def test_only_the_address_that_workers_come_by_is_listened_on(said: list[str]) -> None:
    board = Switchboard(Path("unused"), ["127.0.0.1", "localhost"], said.append)
    host, port = board.variables()[ADDRESS].removeprefix("tcp ").split(":")
    assert host == "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5.0)
    board.close()


def test_nobody_answers(board: Switchboard) -> None:
    variables = board.variables()
    board.close()
    with pytest.raises(OSError):
        call_launcher(variables)
