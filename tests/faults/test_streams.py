"""A stream between processes: whoever dies, stops or meddles, the others get every batch once, in order, or are told why not."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import farandole as fd
from farandole.errors import DataError, MismatchError, RankFailedError, SettingsError, StalledError

FIELDS = {"x": ((500,), "float32"), "number": ((), "int64")}
PRELUDE = """
import os, sys, time
import numpy as np
import farandole as fd
name, secret, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
stream = fd.Stream(name, {"x": ((500,), "float32"), "number": ((), "int64")}, depth=3, subscribers=2, secret=secret)
def put(producer, i):
    with producer.slot() as slot:
        slot["number"][...] = i
        slot["x"][:] = i
"""
READS = PRELUDE + """
start = int(sys.argv[4]) if len(sys.argv) > 4 else None
for batch in stream.subscribe(start):
    assert (batch["x"] == batch["number"]).all()
    print(int(batch["number"]), flush=True)
print("end")
"""
PRODUCES = PRELUDE + """
with stream.producer(name="decoder") as producer:
    for i in range(count):
        put(producer, i)
"""


class Processes:
    def __init__(self):
        self.all = []

    def start(self, script, *args):
        command = [sys.executable, "-c", script, *map(str, args)]
        self.all.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return self.all[-1]

    def end(self):
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def processes():
    started = Processes()
    yield started
    started.end()


@pytest.fixture
def secret():
    return os.urandom(8).hex()


def lines(process):
    """What a process has printed at its end."""
    out, err = process.communicate(timeout=60)
    return out.split(), err


def everything(count):
    return [*map(str, range(count)), "end"]


def small(secret, **more):
    return fd.Stream("small", FIELDS, secret=secret, **{"depth": 3, "subscribers": 1} | more)


def put(producer, i):
    producer.put(x=np.full(500, i, np.float32), number=np.int64(i))


def test_every_subscriber_reads_every_batch_once_in_one_order_whoever_produces(processes, secret):
    """Two producers: what each of them makes is in its order, and all see the same."""
    together = ("subscribers=2", "subscribers=3, producers=2")
    reads = READS.replace(*together)
    writes = PRODUCES.replace(*together).replace("put(producer, i)\n", "put(producer, i + int(sys.argv[4]))\n")
    readers = [processes.start(reads, "both", secret, 0) for _ in range(3)]
    writers = [processes.start(writes, "both", secret, 150, first) for first in (0, 1000)]
    found = [lines(reader)[0] for reader in readers]
    assert [writer.wait(30) for writer in writers] == [0, 0]
    assert found[0] == found[1] == found[2] and len(found[0]) == 301
    numbers = [int(word) for word in found[0][:-1]]
    assert [n for n in numbers if n < 1000] == [*range(150)] and [n for n in numbers if n >= 1000] == [*range(1000, 1150)]


def kill_and_join_again(processes, secret, kills, seed):
    """One subscriber is killed at any moment, again and again; the next one joins where it may. The other misses nothing."""
    rng = random.Random(seed)
    endless = PRODUCES.replace("for i in range(count):", "i = -1\n    while not os.path.exists(sys.argv[4]):\n        i += 1")
    stop = Path(f"/tmp/farandole-test-{secret}")
    try:
        writer, faithful = processes.start(endless, "killed", secret, 0, stop), processes.start(READS, "killed", secret, 0)
        for _ in range(kills):
            victim = processes.start(READS, "killed", secret, 0)
            victim.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            victim.send_signal(signal.SIGKILL)
            begun = victim.communicate(timeout=30)[0].split()
            numbers = [int(word) for word in begun[:-1]]  # the last may be half a number
            assert numbers == [*range(numbers[0], numbers[0] + len(numbers))] if numbers else True
        stop.touch()
        found, problem = lines(faithful)
        assert writer.wait(30) == 0 and found == everything(len(found) - 1), problem
    finally:
        stop.unlink(missing_ok=True)


def test_a_killed_subscriber_holds_nobody_up(processes, secret):
    kill_and_join_again(processes, secret, 6, 1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_a_hundred_subscribers_are_killed(processes, secret, seed):
    kill_and_join_again(processes, secret, 25, seed)


def test_a_subscriber_killed_while_it_holds_a_slot_holds_nobody_up(processes, secret):
    holds = PRELUDE + "for batch in stream.subscribe():\n    print('held', flush=True)\n    time.sleep(60)\n"
    victim, faithful = processes.start(holds, "held", secret, 0), processes.start(READS, "held", secret, 0)
    writer = processes.start(PRODUCES, "held", secret, 40)
    assert victim.stdout.readline() == "held\n"
    victim.kill()
    assert lines(faithful)[0] == everything(40) and writer.wait(30) == 0


@pytest.mark.parametrize("within", ["between slots", "in a slot"])
def test_a_killed_producer_is_named_after_all_it_has_committed(processes, secret, within):
    die = "os.kill(os.getpid(), 9)"
    dies = PRODUCES.replace("put(producer, i)\n", f"put(producer, i)\n    {die}\n" if within == "between slots" else "put(producer, i)\n")
    if within == "in a slot":
        dies += ""
        dies = dies.replace('slot["x"][:] = i', f'slot["x"][:250] = i\n        if i == 7: {die}\n        slot["x"][250:] = i')
    readers = [processes.start(READS, "dies", secret, 0) for _ in range(2)]
    writer = processes.start(dies, "dies", secret, 7 if within == "between slots" else 20)
    for reader in readers:
        found, problem = lines(reader)
        assert found == everything(7)[:-1]
        assert re.search(rf"RankFailedError: stream 'dies': producer 'decoder' \(process {writer.pid}\) has ended without closing", problem)
    assert writer.wait(5) == -signal.SIGKILL


def test_a_producer_that_was_lost_can_be_replaced(processes, secret):
    stream = small(secret, depth=8)
    subscriber = stream.subscribe()
    with contextlib.suppress(ValueError), stream.producer() as producer:
        put(producer, 0)
        with producer.slot() as slot:
            slot["x"][:] = -1
            raise ValueError("decoding failed")
    with stream.producer() as producer:
        put(producer, 1)
    assert [int(batch["number"]) for batch in subscriber] == [0, 1]


def test_a_subscriber_that_never_reads_is_named(secret, capfd):
    stream = small(secret, subscribers=2, warn_s=0.2, abort_s=1.0)
    slow, other = stream.subscribe(name="slow"), stream.subscribe(name="other")
    producer = stream.producer()
    for i in range(3):
        put(producer, i)
        assert int(other.next()["number"]) == i
    with pytest.raises(StalledError, match=r"producer has waited 1\.. s for subscriber 'slow' \(process \d+\), which has read 0 of 3;"):
        put(producer, 3)
    warned = capfd.readouterr().err
    assert warned.count("farandole: stream 'small': producer has waited") == 1 and "'slow'" in warned and "'other'" not in warned
    slow.close()
    put(producer, 3)
    producer.close()
    assert int(other.next()["number"]) == 3 and other.next() is None


def test_a_wait_for_a_batch_names_who_is_to_make_it(secret):
    stream = small(secret)
    subscriber = stream.subscribe()
    with pytest.raises(StalledError, match="for 1 producers to join"):
        subscriber.next(timeout=0.2)
    producer = stream.producer(name="decoder")
    with pytest.raises(StalledError, match=r"for producer 'decoder' \(process"):
        subscriber.next(timeout=0.2)
    put(producer, 5)
    assert int(subscriber.next(timeout=5)["number"]) == 5


def test_joining_at_a_place(secret):
    stream = small(secret)
    first, producer = stream.subscribe(), stream.producer()
    for i in range(5):
        put(producer, i)
        first.next()
    assert stream.position() == 5
    assert int(stream.subscribe().next()["number"]) == 2  # the oldest there is
    assert int(stream.subscribe(start=4).next()["number"]) == 4
    later = stream.subscribe(start=6)
    with pytest.raises(SettingsError, match="place 1 is there no more; the oldest is 2, the next 5"):
        stream.subscribe(start=1)
    for i in (5, 6):
        put(producer, i)
        first.next()
    assert int(later.next()["number"]) == 6


def test_two_jobs_with_one_name_do_not_meet(secret):
    one, other = small(secret), small(secret + "other", depth=5)
    with one.producer() as a, other.producer() as b:
        subscribers = one.subscribe(), other.subscribe()
        put(a, 1)
        put(b, 2)
    assert [[int(batch["number"]) for batch in subscriber] for subscriber in subscribers] == [[1], [2]]


def test_a_stream_that_is_opened_otherwise_is_an_error_that_shows_both(secret):
    with small(secret), pytest.raises(MismatchError, match=r'"depth": 3.*"depth": 4'):
        small(secret, depth=4)
    with pytest.raises(SettingsError, match="common secret="):
        fd.Stream("small", FIELDS)
    with small(secret) as stream, pytest.raises(SettingsError, match=r"x is \(\(3,\), 'float64'\), not \(\(500,\), 'float32'\)"):
        stream.producer().put(x=np.zeros(3), number=1)


def scribble(stream, where, word):
    """What a stray write does."""
    for link in [*Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(FileNotFoundError):
            if str(link.readlink()).startswith("/dev/shm/") and link.stat().st_size == stream.ring.nbytes:
                with link.open("r+b") as file:
                    file.seek(where)
                    file.write(word.to_bytes(8, "little"))


def test_damaged_memory_is_not_read(secret):
    stream = small(secret)
    subscriber, producer = stream.subscribe(), stream.producer()
    put(producer, 0)
    put(producer, 1)
    assert int(subscriber.next()["number"]) == 0
    marks = stream.ring.nbytes - 4 * os.sysconf("SC_PAGESIZE")
    scribble(stream, marks + 8 * 8 + 3 * 8, 12345)  # of the second slot, the check of its mark
    with pytest.raises(DataError, match="place 1 was overwritten or is damaged"):
        subscriber.next()
    scribble(stream, 0, 99)
    with pytest.raises(DataError, match="damaged, or of another version"):
        small(secret)


def test_a_file_of_somebody_without_the_secret_is_not_read(secret):
    stream = small(secret)
    scribble(stream, 8 * 7, 4711)  # of the digest
    with pytest.raises(DataError, match="not of this job"):
        small(secret)
    stream.close()


def test_a_batch_that_is_overwritten_while_it_is_read_is_noticed(secret):
    stream = small(secret)
    subscriber, producer = stream.subscribe(), stream.producer()
    put(producer, 0)
    subscriber.next()
    marks = stream.ring.nbytes - 4 * os.sysconf("SC_PAGESIZE")
    scribble(stream, marks + 4 * 8, 4)  # the mark of place 3
    with pytest.raises(DataError):
        subscriber.next()


def test_batches_cannot_be_written_by_those_who_read_them(secret):
    stream = small(secret)
    subscriber, producer = stream.subscribe(), stream.producer()
    put(producer, 3)
    batch = subscriber.next()
    with pytest.raises(ValueError, match="read-only"):
        batch["x"][0] = 1
    assert batch["x"].base is not None and not batch["x"].flags.owndata


UNSHARE = ["unshare", "-rm", "sh", "-c"]


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "mount -t tmpfs tmpfs /dev/shm"], capture_output=True).returncode != 0,
    reason="mounts a /dev/shm of its own in a namespace, which this system forbids",
)
def test_a_full_dev_shm_is_an_error_that_says_how_much_is_needed():
    script = "import farandole as fd; fd.Stream('large', {'x': ((1 << 20,), 'float32')}, depth=4, secret='s')"
    words = [*UNSHARE, 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"', "sh", sys.executable, "-c", script]
    run = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert run.returncode == 1
    assert "SettingsError: stream 'large': /dev/shm has no room for 16.1 MiB, 4 slots of 4.0 MiB" in run.stderr, run.stderr


def test_nothing_is_left_when_all_are_killed(processes, secret):
    before = {*Path("/dev/shm").iterdir()}
    holds = PRELUDE + "producer = stream.producer()\nput(producer, 0)\nprint('up', flush=True)\ntime.sleep(60)\n"
    started = [processes.start(holds, "killed", secret, 0) for _ in range(2)]
    for process in started:
        assert process.stdout.readline() == "up\n"
    for process in started:
        process.kill()
        process.wait()
    assert not [path for path in {*Path("/dev/shm").iterdir()} - before if "stream" in path.name]
    bound = Path("/proc/net/unix").read_text()
    assert not [process.pid for process in started if f"-{process.pid}-" in bound]
    stream = small(secret)  # a new one
    assert stream.position() == 0
    stream.close()


def test_a_producer_that_is_done_waits_for_those_who_have_not_joined(processes, secret):
    writer = processes.start(PRODUCES, "late", secret, 3)
    with pytest.raises(subprocess.TimeoutExpired):
        writer.wait(1.0)
    readers = [processes.start(READS, "late", secret, 0) for _ in range(2)]
    assert [lines(reader)[0] for reader in readers] == [everything(3)] * 2 and writer.wait(10) == 0


def test_the_end_is_no_error_and_a_lost_producer_is(secret):
    stream = small(secret)
    subscriber, producer = stream.subscribe(), stream.producer(name="gone")
    put(producer, 0)
    del producer
    assert int(subscriber.next()["number"]) == 0
    with pytest.raises(RankFailedError, match="'gone'"):
        subscriber.next()
