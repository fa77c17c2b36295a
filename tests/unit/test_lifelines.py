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

from farandole.comm.lifelines import Lifelines, open_lifelines

CALLER = """
import socket, sys
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
word = input()
line.send(word.encode())
"""


@pytest.fixture
def caller():
    """A process with a line to this one, which it ends with the word it reads; and this end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", CALLER, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "connected\n"
            lines = Lifelines({7: listener.accept()[0]})
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


class CutOff(socket.socket):
    """A line whose host has vanished, and the way to it too: keep-alive ends it with this."""

    def recv(self, count):
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))


def test_a_host_that_cannot_be_reached_any_more_is_lost():
    assert Lifelines({7: CutOff()}).lost() == {7}


class Meeting:
    """What ranks that are threads have in common."""

    def __init__(self, size):
        self.size, self.barrier, self.said = size, threading.Barrier(size), {}


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
        return self.allgather_object(value)[root]


def lines_of(size, first_ranks):
    meeting, found = Meeting(size), {}

    def take_part(rank):
        found[rank] = open_lifelines(Member(rank, meeting), first_ranks)

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
    monkeypatch.setattr("farandole.comm.lifelines._addresses", lambda: ["127.0.0.1"])
    monkeypatch.setattr("farandole.comm.lifelines._call", lambda addresses, port, key, rank: None)
    found = lines_of(3, [1, 2])
    assert [unwatched for _, unwatched in found] == [[1, 2]] * 3
    assert [lines.lost() for lines, _ in found] == [set()] * 3
