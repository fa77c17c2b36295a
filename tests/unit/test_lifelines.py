"""Lines between nodes: they end with the process at the other end, and only with it."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from farandole.comm.world.lifelines import Lifelines, open_lifelines
from farandole.launch.link import Link

KEY = b"of a job"
CALLER = """
import sys
from farandole.launch.link import connect
line = connect([("127.0.0.1", int(sys.argv[1]))], b"of a job", 30)
line.send(7)
print("connected", flush=True)
line.send(input())
"""


@pytest.fixture
def caller():
    """A process with a line to this one, which it ends with the word it reads; and this end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", CALLER, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            line = Link(listener.accept()[0], KEY, calls=False)
            assert line.recv(30) == 7
            lines = Lifelines({7: line})
            yield process, lines
            process.kill()
            lines.drop()


def test_a_process_that_is_killed_is_lost(caller):
    process, lines = caller
    assert lines.lost() == set()
    process.kill()
    process.wait()
    assert lines.lost() == {7}
    assert lines.lost() == {7}


def test_one_that_does_not_answer_or_has_said_farewell_is_not(caller):
    process, lines = caller
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    assert lines.lost() == set()
    process.send_signal(signal.SIGCONT)
    process.communicate(".\n")
    assert lines.lost() == lines.lost() == set()


class CutOff:
    """A line whose host has vanished, and the way to it too: keep-alive ends it with this."""

    def take(self):
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    def close(self):
        pass


def test_a_host_that_cannot_be_reached_any_more_is_lost():
    assert Lifelines({7: CutOff()}).lost() == {7}


class Meeting:
    """What ranks that are threads have in common; `overheard` is called with what rank 0 broadcasts."""

    def __init__(self, size, overheard):
        self.size, self.barrier, self.said, self.overheard = size, threading.Barrier(size), {}, overheard


class Member:
    def __init__(self, rank, meeting):
        self.rank, self.size, self._meeting = rank, meeting.size, meeting

    def allgather_object(self, value):
        self._meeting.said[self.rank] = value
        self._meeting.barrier.wait(30)
        found = [self._meeting.said[rank] for rank in range(self.size)]
        self._meeting.barrier.wait(30)
        return found

    def broadcast_object(self, value, root):
        if self.rank == root:
            self._meeting.overheard(value)
        return self.allgather_object(value)[root]


def lines_of(size, first_ranks, overheard=lambda value: None, say=pytest.fail):
    meeting, found = Meeting(size, overheard), {}

    def take_part(rank):
        found[rank] = open_lifelines(Member(rank, meeting), first_ranks, say)

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def test_the_first_ranks_of_other_nodes_are_connected_with_rank_0():
    (hub, none), (neighbour, _), (second, _), (third, _) = lines_of(4, [2, 3])
    assert none == []
    assert hub.lost() == neighbour.lost() == second.lost() == third.lost() == set()
    second.drop()
    assert hub.lost() == {2}
    hub.say_farewell()
    assert third.lost() == set()
    third.drop()


def test_who_cannot_connect_is_named_to_all(monkeypatch):
    monkeypatch.setattr("farandole.comm.world.lifelines.connect", refused)
    found = lines_of(3, [1, 2])
    assert [unwatched for _, unwatched in found] == [[1, 2]] * 3
    assert [lines.lost() for lines, _ in found] == [set()] * 3


def refused(*_):
    raise ConnectionRefusedError


def test_strangers_get_no_line_and_keep_none_from_the_ranks():
    strangers, said = [], []

    def call(value):
        ((host, port),), _ = value
        for words in (b"", b"ha", b"GET / HTTP/1.0\r\n\r\n" + bytes(100)):
            strangers.append(socket.create_connection((host, port)))
            strangers[-1].sendall(words)

    (hub, none), (other, _) = lines_of(2, [1], call, said.append)
    assert none == []
    assert hub.lost() == other.lost() == set()
    assert said == ["a connection from 127.0.0.1 was turned away: it does not speak as ranks do"]
    for one in (*strangers, hub, other):
        (one.close if isinstance(one, socket.socket) else one.drop)()


def test_only_the_address_that_other_nodes_come_by_is_listened_on():
    found = []

    def call(value):
        ((_, port),), _ = value
        for host in ("127.0.0.1", "127.0.0.2"):
            with socket.socket() as end:
                found.append(end.connect_ex((host, port)))

    for lines, _ in lines_of(2, [1], call, found.append):
        lines.drop()
    assert found[:2] == [0, errno.ECONNREFUSED]
