"""A rank that does not come: the others are told who is missing where, and may be let go."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from ranktest import RanksFailed, run_ranks

WARN = {"FARANDOLE_STALL_CHECK_TIME_SECONDS": "1"}
ABORT = WARN | {"FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "2"}
BEGIN = "import os, signal, subprocess, time, numpy as np, farandole as fd; fd.init()\n"

# name: (ranks, environment, what each rank does)
SCRIPTS = {
    "late": (3, WARN, """
if fd.rank() == 1:
    time.sleep(3.5)
assert fd.allreduce(np.ones(2), name="loss", op=fd.Sum).tolist() == [3, 3]
result("done")
"""),
    "asynchronous": (3, WARN, """
one = fd.add_process_set([0, 1])
if fd.rank() == 1:
    handles = [fd.allreduce_async(np.ones(1), name=f"grad.{i}") for i in range(40)]
    handles.append(fd.allreduce_async(np.ones(1), name="in_the_set", process_set=one))
time.sleep(5)
if fd.rank() != 1:
    handles = [fd.allreduce_async(np.ones(1), name=f"grad.{i}") for i in range(40)]
if fd.rank() == 0:
    handles.append(fd.allreduce_async(np.ones(1), name="in_the_set", process_set=one))
for handle in handles:
    fd.synchronize(handle)
"""),
    "busy": (2, ABORT, """
end, i, previous = time.monotonic() + 3, 0, None
while fd.broadcast_object(time.monotonic() < end):  # there is always something under way
    handle = fd.allreduce_async(np.ones(1000), name=f"busy.{i}")
    if previous is not None:
        fd.synchronize(previous)
    previous, i = handle, i + 1
fd.synchronize(previous)
"""),
    "let go twice": (2, ABORT, """
from farandole.errors import StalledError
told = []
for attempt in range(2):
    if fd.rank() == 1:
        while not os.path.exists(f"told.{attempt}"):  # not a time: the barrier has the same limit
            time.sleep(0.02)
    else:
        try:
            fd.allreduce(np.ones(1), name="metric")
        except StalledError as error:
            told.append(str(error))
            open(f"told.{attempt}", "w").close()
    fd.barrier()
assert fd.allreduce(np.ones(1), name="metric", op=fd.Sum).tolist() == [2]
result(told)
"""),
    "asynchronous let go": (2, ABORT, """
if fd.rank() == 1:
    handle = fd.allreduce_async(np.ones(1), name="metric")
    while not fd.poll(handle):
        time.sleep(0.01)
    try:
        fd.synchronize(handle)
    except RuntimeError as error:
        result(type(error).__name__)
else:
    time.sleep(4)
    result("late")
fd.barrier()
"""),
    "hanging": (3, ABORT, """
if fd.rank() == 0:
    time.sleep(100)
fd.broadcast(np.ones(3), 0, name="weights")
"""),
    "rank 0 stopped": (2, WARN, """
fd.barrier()
if fd.rank() == 0:
    subprocess.Popen(["sh", "-c", f"sleep 12; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
fd.allreduce(np.ones(1), name="x")
"""),
    "rank 0 stopped for longer than the limit": (2, ABORT, """
fd.barrier()
if fd.rank() == 0:
    subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    fd.allreduce(np.ones(1), name="x")
except RuntimeError as error:
    result(f"{type(error).__name__} {error}")
"""),
    "half-way": (2, ABORT, """
lane, told = fd.global_process_set.runtime().lane, []
def late(*arguments):
    time.sleep(6)
if fd.rank() == 1:
    lane.reduce = late
for name in ("x", "y", "z"):
    try:
        fd.allreduce(np.ones(1), name=name)
    except RuntimeError as error:
        told.append(f"{type(error).__name__} {error}")
result(told)
"""),
    "on its way": (2, {}, '''
class Slowly:
    def __init__(self, request, seconds):
        self.request, self.end = request, time.monotonic() + seconds
    def test(self):
        return time.monotonic() > self.end and self.request.test()

transport = fd.global_process_set.runtime().lane.transport
broadcast, seconds = transport.broadcast, 5
if fd.rank() == 1:
    transport.broadcast = lambda data, root: Slowly(broadcast(data, root), seconds)
fd.broadcast(np.ones(3), 0)
fd.barrier()  # rank 0 has sent all, and waits here
seconds = 3
result(fd.synchronize(fd.broadcast_async(np.ones(3) + fd.rank(), 0)).tolist())  # and exits after this one
'''),
    "a fault of the watchdog": (2, ABORT, """
from farandole.comm.world import lifelines
from farandole.comm.named import negotiate
from farandole.errors import StalledError
def faulty(*arguments):
    raise RuntimeError("a fault that nobody has thought of")
lifelines.Lifelines.lost = negotiate.Coordinator.missing = faulty
if fd.rank() == 1:
    while not os.path.exists("told"):
        time.sleep(0.02)
else:
    try:
        fd.allreduce(np.ones(1), name="metric")
    except StalledError as error:
        result(str(error))
    open("told", "w").close()
fd.barrier()
"""),
    "as in Horovod": (2, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}, "time.sleep(2.5 * fd.rank()); fd.barrier()"),
    "switched off": (
        2,
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_CHECK_DISABLE": "1"},
        "time.sleep(2.5 * fd.rank()); fd.barrier()",
    ),
}  # fmt: skip


def run_script(name):
    ranks, env, script = SCRIPTS[name]
    try:
        return run_ranks(ranks, BEGIN + script, env=env, timeout=90, expect=None)
    except RanksFailed as error:
        return error


@pytest.fixture(scope="module")
def runs():
    """All of them mostly sleep: a few at a time."""
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(SCRIPTS, pool.map(run_script, SCRIPTS)))


@pytest.fixture
def ended(runs):
    """The run of a script, if it ended as expected."""

    def get(name, *, well=True):
        if isinstance(runs[name], RanksFailed):
            raise runs[name]
        assert (runs[name].returncode == 0) is well, runs[name].stderr
        return runs[name]

    return get


def warnings_in(run):
    return [line for line in run.stderr.splitlines() if line.startswith("farandole: stalled")]


def test_a_late_rank_is_named_and_the_run_goes_on(ended):
    run = ended("late")
    assert run.results == ["done"] * 3
    first, *more = warnings_in(run)
    assert re.search(
        # The other one that waits may not have told rank 0 yet.
        r"allreduce\.loss has waited \d s; here: rank (?:0, 2|0|2); missing: rank 1 \(in no farandole call\)", first,
    )
    assert len(more) <= 1  # not one a second


def test_asynchronous_operations_that_nobody_waits_for_are_named_too(ended):
    lines = warnings_in(ended("asynchronous"))
    text = "\n".join(lines)
    assert re.search(r"grad\.\d+, allreduce\.grad\.\d+, allreduce\.grad\.\d+ and 37 more have waited", text)
    assert "here: rank 1; missing: rank 0 (in no farandole call), rank 2 (in no farandole call)" in text
    assert re.search(r"set 1: allreduce\.in_the_set has waited .*missing: rank 0 \(in no", text)
    assert len(lines) <= 6  # not one for each operation


def test_work_without_a_pause_is_no_stall(ended):
    assert warnings_in(ended("busy")) == []


def test_a_stalled_wait_ends_with_an_error_and_later_ones_work(ended):
    told = ended("let go twice").results
    assert len(told[0]) == 2 and told[1] == []
    for text in told[0]:
        assert re.search(
            r"\[rank 0/2\] allreduce\.metric has waited \d s; here: rank 0; missing: rank 1 .*limit is 2 s",
            text,
        )


def test_an_asynchronous_operation_that_stalls_is_ended(ended):
    assert ended("asynchronous let go").results == ["late", "StalledError"]


def test_a_rank_that_hangs_for_good_ends_the_job(ended):
    run = ended("hanging", well=False)
    assert run.seconds < 40  # rank 0 sleeps for 100
    assert (
        "StalledError" in run.stderr and "broadcast.weights" in run.stderr and "missing: rank 0" in run.stderr
    )


def test_a_rank_0_that_is_stopped_is_said_by_the_others(ended):
    said = ended("rank 0 stopped").stderr
    assert re.search(r"\[rank 1/2\] allreduce\.x has waited \d+ s, and rank 0 does not answer", said)


def test_a_rank_0_that_is_stopped_does_not_keep_others_beyond_the_limit(ended):
    told = ended("rank 0 stopped for longer than the limit").results[1]
    assert re.fullmatch(
        r"StalledError \[rank 1/2\] allreduce\.x has waited \d s; rank 0 does not answer; the limit is 2 s", told
    )


def test_nothing_follows_an_operation_that_was_given_up_half_way(ended):
    first, second = ended("half-way").results
    assert first[0].startswith("StalledError [rank 0/2] allreduce.x has waited")
    for name, told in zip("yz", first[1:]):
        assert re.match(rf"EngineStopped .*allreduce\.{name}: .* has given up allreduce\.x half-way: start the job", told)
    assert len(second) == 2  # its own part of x is done
    assert all(re.match(r"RankFailedError .*rank 0 has given up allreduce\.x half-way", told) for told in second)


def test_a_rank_that_has_done_its_part_may_go_on_or_exit_while_others_wait_for_the_data(ended):
    assert ended("on its way").results == [[1, 1, 1]] * 2


def test_a_watchdog_that_meets_a_fault_says_so_and_goes_on(ended):
    run = ended("a fault of the watchdog")
    assert "metric has waited" in run.by_rank[0]
    assert "[rank 0/2] the watchdog goes on after a fault of its own:\nTraceback" in run.stderr
    assert 1 <= run.stderr.count("RuntimeError: a fault that nobody has thought of") <= 4  # not every half second


def test_horovod_s_variables_are_honoured(ended):
    assert "missing: rank 1" in ended("as in Horovod").stderr
    assert "stalled" not in ended("switched off").stderr
