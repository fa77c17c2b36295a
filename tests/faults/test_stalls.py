"""A rank that does not come: the others are told who is missing where, and may be let go."""

import re

from ranktest import run_ranks

WARN = {"FARANDOLE_STALL_CHECK_TIME_SECONDS": "1"}
ABORT = WARN | {"FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "2"}


def warnings_in(run):
    return [line for line in run.stderr.splitlines() if line.startswith("farandole: stalled")]


def test_a_late_rank_is_named_and_the_run_goes_on():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        if fd.rank() == 1:
            time.sleep(3.5)
        assert fd.allreduce(np.ones(2), name="loss", op=fd.Sum).tolist() == [3, 3]
        result("done")
    """
    run = run_ranks(3, script, env=WARN)
    assert run.results == ["done"] * 3
    first, *more = warnings_in(run)
    assert re.search(r"allreduce\.loss has waited [12] s; here: rank 0, 2; missing: rank 1 \(in no farandole call\)", first)
    assert len(more) <= 1  # not one a second


def test_asynchronous_operations_that_nobody_waits_for_are_named_too():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        one = fd.add_process_set([0, 1])
        if fd.rank() == 1:
            handles = [fd.allreduce_async(np.ones(1), name=f"grad.{i}") for i in range(40)]
            handles.append(fd.allreduce_async(np.ones(1), name="in_the_set", process_set=one))
        time.sleep(3.5)
        if fd.rank() != 1:
            handles = [fd.allreduce_async(np.ones(1), name=f"grad.{i}") for i in range(40)]
        if fd.rank() == 0:
            handles.append(fd.allreduce_async(np.ones(1), name="in_the_set", process_set=one))
        for handle in handles:
            fd.synchronize(handle)
    """
    run = run_ranks(3, script, env=WARN)
    text = "\n".join(warnings_in(run))
    assert re.search(r"grad\.\d+, allreduce\.grad\.\d+, allreduce\.grad\.\d+ and 37 more have waited", text)
    assert re.search(r"here: rank 1; missing: rank 0 \(in no farandole call\), rank 2 \(in no farandole call\)", text)
    assert re.search(r"set 1: allreduce\.in_the_set has waited .*missing: rank 0 \(in no", text)
    assert len(warnings_in(run)) <= 4


def test_work_without_a_pause_is_no_stall():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        end, i, previous = time.monotonic() + 3, 0, None
        while fd.broadcast_object(time.monotonic() < end):  # there is always something under way
            handle = fd.allreduce_async(np.ones(1000), name=f"busy.{i}")
            if previous is not None:
                fd.synchronize(previous)
            previous, i = handle, i + 1
        fd.synchronize(previous)
    """
    assert "stalled" not in run_ranks(2, script, env=ABORT).stderr


def test_a_stalled_wait_ends_with_an_error_and_later_ones_work():
    script = """
        import time, numpy as np, farandole as fd
        from farandole.errors import StalledError
        fd.init()
        told = []
        for attempt in range(2):
            if fd.rank() == 1:
                time.sleep(4)
            else:
                try:
                    fd.allreduce(np.ones(1), name="metric")
                except StalledError as error:
                    told.append(str(error))
            fd.barrier()
        assert fd.allreduce(np.ones(1), name="metric", op=fd.Sum).tolist() == [2]
        result(told)
    """
    run = run_ranks(2, script, env=ABORT, timeout=40)
    assert len(run.results[0]) == 2
    for text in run.results[0]:
        assert re.search(r"\[rank 0/2\] allreduce\.metric has waited [23] s; here: rank 0; missing: rank 1 .*limit is 2 s", text)
    assert run.results[1] == []


def test_an_asynchronous_operation_that_stalls_is_ended():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
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
    """
    assert run_ranks(2, script, env=ABORT, timeout=30).results == ["late", "StalledError"]


def test_a_rank_that_hangs_for_good_ends_the_job():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        if fd.rank() == 0:
            time.sleep(100)
        fd.broadcast(np.ones(3), 0, name="weights")
    """
    run = run_ranks(3, script, env=ABORT, timeout=20, expect=None)
    assert run.returncode != 0
    assert "StalledError" in run.stderr and "broadcast.weights" in run.stderr and "missing: rank 0" in run.stderr


def test_a_rank_0_that_is_stopped_is_said_by_the_others():
    script = """
        import os, signal, subprocess, numpy as np, farandole as fd
        fd.init()
        fd.barrier()
        if fd.rank() == 0:
            subprocess.Popen(["sh", "-c", f"sleep 7; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        fd.allreduce(np.ones(1), name="x")
    """
    run = run_ranks(2, script, env=WARN, timeout=30)
    assert re.search(r"\[rank 1/2\] allreduce\.x has waited \d s, and rank 0 does not answer", run.stderr)


def test_the_warning_can_be_switched_off_as_in_horovod():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        time.sleep(2 * fd.rank())
        fd.barrier()
    """
    quiet = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_CHECK_DISABLE": "1"}
    assert "stalled" not in run_ranks(2, script, env=quiet).stderr
    loud = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    assert "missing: rank 1" in run_ranks(2, script, env=loud).stderr
