"""A rank fails under `farandole launch`: it is named, all end soon, and nothing is left."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ranktest import RanksResult, run_ranks
from ranktest.job import launch_command
from ranktest.library import make

LIMIT_S = 10.0
"""From the failure to the end of the job."""
SOON_S = 30.0
"""From the start of the job to its end, on a busy machine; ranks that nobody ends wait for a minute, or for ever."""

# Rank 1 does something; the others wait for it in a collective for ever.
FARANDOLE = """
import os, sys, time
import numpy as np
import farandole
farandole.init()
farandole.allreduce(np.ones(3), name="together")
if farandole.rank() == 1:
    {deed}
farandole.allreduce(np.ones(3), name="alone")
time.sleep(60)
"""
MPI4PY = """
import os, sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    {deed}
MPI.COMM_WORLD.recv(source=1, tag=7)
"""


def failed(script: str, deed: str, code: int, ranks: int = 2, options: Sequence[str] = ()) -> RanksResult:
    done = run_ranks(
        ranks, script.format(deed=deed), launcher="farandole", launcher_args=options, expect=code, timeout=90
    )
    assert done.seconds < SOON_S
    return done


def needs_a_line_to_listen_in_on() -> None:
    if make() == "openmpi":
        pytest.skip("Open MPI talks PMIx, from which the launcher cannot tell who has joined or left MPI")


def block(done: RanksResult) -> dict[str, str]:
    """The launcher's own words: `head`, then what stands behind each name."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[")]
    starts = [number for number, line in enumerate(lines) if line.startswith("farandole: rank ")]
    assert len(starts) == 1, done.stderr
    named = [line.split(maxsplit=1) for line in lines[starts[0] + 1 :]]
    return {"head": lines[starts[0]]} | dict(named)


@pytest.mark.parametrize("script", [FARANDOLE, MPI4PY], ids=["farandole", "mpi4py"])
def test_a_killed_rank_is_named_with_its_signal(script: str) -> None:
    told = block(failed(script, "os.kill(os.getpid(), 9)", 128 + signal.SIGKILL))
    assert told["head"] == "farandole: rank 1 failed: killed by SIGKILL (signal 9)"
    assert told["host"].startswith(os.uname().nodename)
    assert told["repeat"].startswith("farandole launch -n 2 -- ")


def test_a_rank_that_raises_is_named_with_its_exception() -> None:
    done = failed(FARANDOLE, "raise ValueError('batch 7 is empty')", 1, ranks=3)
    told = block(done)
    assert told["head"] == "farandole: rank 1 failed: exit code 1"
    assert told["error"] == "ValueError: batch 7 is empty"
    assert "[1] Traceback" in done.stderr


def seconds_after(script: str, code: int) -> tuple[float, RanksResult]:
    """From what rank 1 notes as `at` to the end of the job."""
    started = time.time()
    done = failed(script, "", code)
    return started + done.seconds - done.by_rank[1]["at"], done


def test_a_wrong_shape_ends_the_job_with_who_has_which() -> None:
    script = """
    import time
    import numpy as np
    import farandole
    farandole.init()
    farandole.barrier()
    result({{"at": time.time()}})
    farandole.allreduce(np.ones(4 if farandole.rank() == 1 else 3), name="loss")
    time.sleep(60)
    """
    seconds, done = seconds_after(script, 1)
    told = block(done)
    assert told["head"] in [f"farandole: rank {rank} failed: exit code 1" for rank in (0, 1)]
    assert "ranks differ in shape: rank 0 has (3,); rank 1 has (4,)." in told["error"]
    assert seconds < LIMIT_S


def test_a_death_in_a_broadcast_is_named() -> None:
    script = """
    import os, threading, time
    import numpy as np
    import farandole
    def die():
        time.sleep(0.3)
        result({{"at": time.time()}})
        os.kill(os.getpid(), 9)
    farandole.init()
    weights = np.zeros(10_000_000)
    farandole.barrier()
    if farandole.rank() == 1: threading.Thread(target=die, daemon=True).start()
    while True:
        farandole.broadcast_(weights, 0, name="weights")
    """
    seconds, done = seconds_after(script, 128 + signal.SIGKILL)
    assert block(done)["head"] == "farandole: rank 1 failed: killed by SIGKILL (signal 9)"
    assert seconds < LIMIT_S


def test_a_rank_that_init_has_numbered_otherwise_is_named_by_its_launcher_s_number() -> None:
    others_first = "from mpi4py import MPI; farandole.init(MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank))"
    script = FARANDOLE.replace("farandole.init()", others_first).replace("rank() == 1", "rank() == 0")
    told = block(failed(script, "raise ValueError('batch 7 is empty')", 1))
    assert told["head"] == "farandole: rank 1 failed: exit code 1"
    assert told["error"] == "ValueError: batch 7 is empty"


@pytest.mark.parametrize("script", [FARANDOLE, MPI4PY], ids=["farandole", "mpi4py"])
def test_an_exit_in_the_middle_of_the_work_is_a_failure_despite_its_code(script: str) -> None:
    if script is MPI4PY:
        needs_a_line_to_listen_in_on()
    told = block(failed(script, "os._exit(0)", 1))
    assert "rank 1 failed: exited without" in told["head"]
    assert "os._exit" in told["head"]


def test_a_rank_that_leaves_early_is_named_rather_than_those_who_needed_it() -> None:
    told = block(failed(FARANDOLE, "sys.exit(0)", 1))
    assert told["head"] == "farandole: rank 1 failed: it ended in order while other ranks still needed it"
    assert "rank 0 (RankFailedError" in told["others"]


def test_an_mpi_abort_passes_its_code_on() -> None:
    assert "rank 1 failed: exit code 7" in block(failed(MPI4PY, "MPI.COMM_WORLD.Abort(7)", 7))["head"]


def test_a_crash_passes_its_signal_on() -> None:
    told = block(failed(MPI4PY, "os.abort()", 128 + signal.SIGABRT))
    assert "SIGABRT" in told["head"]


def test_an_exit_code_is_passed_on_and_other_ranks_are_ended() -> None:
    script = "import os, sys, time\nif rank_number() == 1: sys.exit(42)\ntime.sleep(60)"
    assert "rank 1 failed: exit code 42" in block(failed(script, "", 42, ranks=3))["head"]


def test_a_rank_that_never_joins_does_not_keep_the_others_waiting() -> None:
    needs_a_line_to_listen_in_on()
    script = """
    import os, sys, time
    if rank_number() == 1: sys.exit(0)
    import farandole
    farandole.init()
    """
    told = block(failed(script, "", 1))
    assert "rank 1 failed: exited before it joined MPI, where rank 0 waits for it" in told["head"]


def test_a_rank_that_ends_first_in_order_is_no_failure() -> None:
    script = """
    import os, sys, time
    import farandole
    farandole.init()
    if farandole.rank() == 0: time.sleep(1.5)
    """
    run_ranks(2, script, launcher="farandole", timeout=90)


def test_init_may_come_again_before_an_early_exit() -> None:
    script = """
    import os, time
    import farandole
    for _ in range(2):
        farandole.init()
        farandole.barrier()
        if _ and farandole.rank() == 1: os._exit(0)
        farandole.shutdown()
        time.sleep(0.05)
    time.sleep(60)
    """
    assert "rank 1 failed: exited without" in block(failed(script, "", 1))["head"]


def test_what_a_rank_started_ends_with_it() -> None:
    """A process of a session of its own would outlive a mere process group."""
    deed = "import subprocess; subprocess.Popen(['sleep', '100'], start_new_session=True); os.kill(os.getpid(), 9)"
    failed(MPI4PY, deed, 128 + signal.SIGKILL)


def test_a_rank_that_will_not_listen_is_killed() -> None:
    script = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0.5)
    if rank_number() == 1: sys.exit(4)
    time.sleep(60)
    """
    failed(script, "", 4)


def test_a_killed_worker_takes_its_rank_along() -> None:
    script = "import os, time\nif rank_number() == 1: os.kill(os.getppid(), 9)\ntime.sleep(60)"
    told = block(failed(script, "", 1))
    assert "failed: the connection to its worker was lost" in told["head"]
    # mpiexec kills the other worker at once, and may itself name that one: on a busy machine the launcher sees both go together.
    assert "rank 1 failed" in told["head"] or told["others"].startswith("rank 1 (")


def test_a_worker_that_is_told_to_end_fails_the_job() -> None:
    script = "import os, time\nif rank_number() == 1: os.kill(os.getppid(), 15)\ntime.sleep(60)"
    assert "rank 1 failed: killed by SIGTERM" in block(failed(script, "", 128 + signal.SIGTERM))["head"]


def test_mpiexec_dies() -> None:
    script = """
    import os, signal, time
    def name_and_parent(pid):
        head, _, tail = open(f"/proc/{{pid}}/stat").read().rpartition(")")
        return head.partition("(")[2], int(tail.split()[1])
    if rank_number() == 0:
        open("here", "w").close()
    if rank_number() == 1:
        while not os.path.exists("here"):  # otherwise it is said to have ended before rank 0
            time.sleep(0.02)
        pid, (name, parent) = os.getppid(), name_and_parent(os.getppid())
        while not name.startswith(("mpiexec", "prterun")):
            pid, (name, parent) = parent, name_and_parent(parent)
        os.kill(pid, signal.SIGKILL)
    time.sleep(60)
    """
    assert "mpiexec ended with code -9 before the ranks did" in failed(script, "", 1).stderr


def test_a_stranger_on_the_launcher_s_line_disturbs_no_job() -> None:
    script = """
    import os, socket
    from pathlib import Path
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(Path(os.environ["FARANDOLE_JOB_DIR"], "launcher")))
        end.sendall(b"\\x80\\x04." * 100)
        while end.recv(4096):
            pass
    result("turned away")
    """
    done = run_ranks(2, script, launcher="farandole", timeout=90)
    assert done.results == ["turned away"] * 2
    assert done.stderr.count("farandole: a connection from this machine was turned away: it does not speak as ranks do") == 1


def test_a_command_that_cannot_be_executed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    told = subprocess.run(
        [*launch_command("farandole", 2), str(program)],
        capture_output=True, text=True, timeout=90, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert told.returncode == 127
    assert f"cannot start '{program}'" in told.stderr


def test_the_record_and_the_logs_of_a_failure(tmp_path: Path) -> None:
    done = failed(FARANDOLE, "raise ValueError('no')", 1, options=["--output-dir", str(tmp_path)])
    told = block(done)
    assert told["logs"].split() == [str(tmp_path / "rank.1.err"), str(tmp_path / "rank.1.out")]
    assert "ValueError: no" in (tmp_path / "rank.1.err").read_text()
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["exit_code"], record["failed_rank"]) == (1, 1)
    assert record["rank"][1]["error"] == "ValueError: no"
    assert record["rank"][0]["how"] == "ended by the launcher"


def test_the_timeline_of_a_job_that_crashed_is_merged(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    deed = "time.sleep(0.7); os.kill(os.getpid(), 9)"
    failed(FARANDOLE, deed, 128 + signal.SIGKILL, options=["--timeline", str(path)])
    events = json.loads(path.read_text())
    assert "ALLREDUCE" in {event.get("name") for event in events}
    assert [left.name for left in tmp_path.iterdir()] == ["trace.json"]


def test_a_timeline_that_cannot_be_merged_fails_no_job(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    script = f"""
    import os
    import farandole
    farandole.init()
    farandole.barrier()
    if farandole.rank() == 0: os.mkdir({str(path)!r})
    """
    options = ["--timeline", str(path)]
    done = run_ranks(2, script, launcher="farandole", launcher_args=options, timeout=90)
    assert done.stderr.count(f"farandole: timeline {path}: merging 2 parts failed") == 1, done.stderr


def test_a_timeline_that_cannot_be_merged_hides_no_failure(tmp_path: Path) -> None:
    path, output = tmp_path / "trace.json", tmp_path / "output"
    deed = f"os.mkdir({str(path)!r}); os.kill(os.getpid(), 9)"
    options = ["--timeline", str(path), "--output-dir", str(output)]
    done = failed(FARANDOLE, deed, 128 + signal.SIGKILL, options=options)
    assert block(done)["head"] == "farandole: rank 1 failed: killed by SIGKILL (signal 9)"
    assert f"farandole: timeline {path}: merging 2 parts failed" in done.stderr
    assert json.loads((output / "run.json").read_text())["failed_rank"] == 1
