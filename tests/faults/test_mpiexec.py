"""Under plain mpiexec: when one rank dies, however it dies, all end within seconds and leave nothing behind."""

import random
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ranktest import RanksFailed, RanksHang, run_ranks
from ranktest.library import make

LIMIT_S = 10.0
BUSY_LIMIT_S = 30.0
"""Beside other tests, three jobs at a time, on two cores; one that nobody ends is there for ever."""

# `fault()` is what the victim does; it notes the time first.
BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import farandole as fd

def fault(kind):
    result({"at": time.time()})
    if kind == "raise":
        raise ValueError("the batch is bad")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if kind == "exit":
        sys.exit(3)
    if kind == "_exit":
        os._exit(0)

fd.init()
fd.barrier()
victim, kind = int(sys.argv[1]), sys.argv[2]
me = fd.rank() == victim
"""

PLACES = {
    "before an allreduce": """
        for step in range(1000):
            if me and step == 20:
                fault(kind)
                sys.exit(0)
            fd.allreduce(np.ones(4), name="loss")
    """,
    "while others wait for asynchronous operations": """
        if me:
            time.sleep(0.2)
            fault(kind)
            sys.exit(0)
        handles = [fd.allreduce_async(np.ones(50_000), name=f"g.{i}") for i in range(10)]
        time.sleep(0.5)
        for handle in handles:
            fd.synchronize(handle)
    """,
    "in a broadcast": """
        weights = np.zeros(30_000_000)
        if me:
            threading.Thread(target=lambda: (time.sleep(0.3), fault(kind)), daemon=True).start()
        while True:
            fd.broadcast_(weights, 0, name="weights")
    """,
    "in a large allreduce": """
        gradients = np.ones(10_000_000, np.float32)
        if me:
            threading.Thread(target=lambda: (time.sleep(0.3), fault(kind)), daemon=True).start()
        while True:
            fd.allreduce_(gradients, name="gradients")
    """,
    "before a barrier of a process set": """
        pair = fd.add_process_set([0, victim] if victim else [0, 1])
        if me:
            fault(kind)
            sys.exit(0)
        if pair.included():
            fd.barrier(pair)
        fd.allreduce(np.ones(4))
    """,
    "while others are inside a call of MPI": """
        if me:
            time.sleep(0.3)
            fault(kind)
        fd.global_process_set.runtime().transport.duplicate()
    """,
    "in a training step": """
        import torch
        import farandole.torch as hvd
        model = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.Linear(700, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(100_000):
            optimizer.zero_grad()
            model(torch.ones(2, 700)).sum().backward()
            if me and step == 20:
                fault(kind)
                sys.exit(0)
            optimizer.step()
    """,
}

# (where, which rank of 3, how, what the survivors or the victim say)
CASES = [
    ("before an allreduce", 1, "raise", "ValueError: the batch is bad"),
    ("before an allreduce", 2, "kill", ""),
    ("before an allreduce", 0, "exit", "rank 0 has exited and takes part in nothing more"),
    ("before an allreduce", 2, "return", "allreduce.loss: rank 2 has exited and takes part in nothing more"),
    ("before an allreduce", 1, "_exit", ""),
    ("while others wait for asynchronous operations", 1, "raise", "ValueError: the batch is bad"),
    ("while others wait for asynchronous operations", 2, "exit", "rank 2 has exited"),
    ("in a broadcast", 0, "kill", ""),
    ("in a large allreduce", 1, "kill", ""),
    ("before a barrier of a process set", 1, "exit", "rank 1 has exited"),
]
# mpiexec ends everyone when a rank dies. Other launchers do not, and each of these can be told not to.
UNHELPED = "unhelped"
LEAVE_THE_OTHERS = {
    "mpich": "-disable-auto-cleanup",
    "intel": "-disable-auto-cleanup",
    "openmpi": "--enable-recovery",
}
UNHELPED_CASES = [
    ("before an allreduce", 1, "_exit", "rank 1 (process ", UNHELPED),
    ("while others wait for asynchronous operations", 0, "_exit", "rank 0 (process ", UNHELPED),
    ("in a broadcast", 0, "_exit", "rank 0 (process ", UNHELPED),
    ("in a large allreduce", 1, "_exit", "rank 1 (process ", UNHELPED),
    ("before a barrier of a process set", 1, "_exit", "rank 1 (process ", UNHELPED),
    ("in a training step", 2, "_exit", "rank 2 (process ", UNHELPED),
    (
        "while others are inside a call of MPI",
        0,
        "_exit",
        "cannot leave setting up (a communicator)",
        UNHELPED,
    ),
]


def die(place, victim, kind, said="", *options, ranks=3, env=None):
    """Run it; seconds from the fault to the end of the job, its exit code and what it said."""
    script = BEGIN + textwrap.dedent(PLACES[place])
    words = [LEAVE_THE_OTHERS[make()]] if UNHELPED in options else []
    own_end = make() == "openmpi" and UNHELPED in options
    started = time.time()
    try:
        run = run_ranks(
            ranks, script, args=[str(victim), kind], launcher_args=words, env=env, expect=None,
            timeout=BUSY_LIMIT_S if own_end else 100,
        )  # fmt: skip
    except RanksHang as error:
        # Open MPI's mpiexec, told to leave the others, often waits for a lock of its own when they have ended by themselves:
        # it has no exit code then, and all that is known of their end is that it came in time.
        if own_end and all("mpiexec" in process or "prte" in process for process in error.living):
            return BUSY_LIMIT_S, None, str(error)
        raise
    return started + run.seconds - run.by_rank[victim]["at"], run.returncode, run.stderr


def failure(*case):
    try:
        return die(*case)
    except RanksFailed as error:
        return error


@pytest.fixture(scope="module")
def deaths(request):
    """What came of every case that was selected. They mostly wait: a few at a time."""
    mine = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    cases = [item.callspec.params["case"] for item in mine if "case" in item.callspec.params]
    with ThreadPoolExecutor(3) as pool:
        return dict(zip(cases, pool.map(lambda case: failure(*case), cases)))


def name_of(case):
    return "-".join(str(word).replace(" ", "_") for word in (*case[:3], *case[4:]))


@pytest.mark.timeout(600)  # the first one pays for all
@pytest.mark.parametrize("case", CASES + UNHELPED_CASES, ids=name_of)
def test_a_rank_that_dies_ends_the_job(deaths, case):
    if isinstance(deaths[case], RanksFailed):
        raise deaths[case]
    seconds, code, said = deaths[case]
    assert seconds <= BUSY_LIMIT_S, f"{seconds:.1f} s, {said}"
    assert case[3] in said
    # A rank that leaves with os._exit(0) is nothing to mpiexec, which ends the others and reports success; Open MPI's, told to
    # leave the others, now and then does so even where they have aborted.
    assert code != 0 or (case[2] == "_exit" and (UNHELPED not in case or make() == "openmpi")), said


def test_an_exception_is_told_with_its_rank_where_torch_distributed_has_a_hook_of_its_own():
    script = """
        import os, torch.distributed as dist, farandole as fd
        fd.init()
        store = f"file://{os.getcwd()}/store"
        dist.init_process_group("gloo", init_method=store, rank=fd.rank(), world_size=fd.size())
        fd.barrier()
        if fd.rank() == 1:
            raise ValueError("the batch is bad")
        fd.barrier()
    """
    run = run_ranks(2, script, timeout=60, expect=None)
    assert run.returncode != 0
    assert run.stderr.count("[rank1]: ValueError: the batch is bad") == 1
    assert "[rank1]: Traceback (most recent call last):" in run.stderr


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_alone_on_its_node_ends_the_job(victim):
    script = """
        import os, sys, time, numpy as np, farandole as fd
        os.environ["FARANDOLE_NODE"] = ["a", "b", "c"][rank_number()]
        fd.init()
        assert fd.describe()["unwatched"] == []
        fd.barrier()
        if fd.rank() == int(sys.argv[1]):
            time.sleep(0.5)
            os._exit(0)
        while True:
            fd.allreduce(np.ones(4), name="loss")
    """
    options = [LEAVE_THE_OTHERS[make()]]
    run = run_ranks(3, script, args=[str(victim)], launcher_args=options, timeout=90, expect=None)
    assert run.seconds < BUSY_LIMIT_S
    assert f"rank {victim}, on another node, has died" in run.stderr


def test_a_rank_says_that_it_leaves_before_it_waits_for_others_to_end_a_timeline(tmp_path):
    script = """
        import os, sys, time, numpy as np, farandole as fd
        from farandole.comm.world import last_words
        last_words.MEET_S = 100
        os.environ["FARANDOLE_NODE"] = str(rank_number())
        fd.init()
        fd.barrier()
        if fd.rank() == 1:
            sys.exit(0)
        fd.allreduce(np.ones(3), name="loss")
    """
    run = run_ranks(2, script, env={"FARANDOLE_TIMELINE": str(tmp_path / "trace.json")}, timeout=90, expect=None)
    assert run.returncode != 0 and run.seconds < BUSY_LIMIT_S
    assert "allreduce.loss: rank 1 has exited and takes part in nothing more" in run.stderr


def test_nothing_is_lost_when_a_rank_ends_early_in_good_order():
    script = """
        import time, numpy as np, farandole as fd
        fd.init()
        fd.barrier()
        if fd.rank() != 1:
            time.sleep(2)
        result(fd.rank())
    """
    assert run_ranks(3, script, expect=0).results == [0, 1, 2]


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_ranks_that_die_anywhere_at_random():
    seed = random.randrange(10**6)
    draw = random.Random(seed)
    end = time.monotonic() + 300
    count = 0
    while time.monotonic() < end:
        place = draw.choice([p for p in PLACES if p != "in a training step"] * 4 + ["in a training step"])
        ranks = draw.choice([3, 4] if "process set" in place else [2, 3, 4])
        victim = draw.randrange(ranks)
        kind = draw.choice(["raise", "kill", "terminate", "exit", "return", "_exit"])
        if place in ("in a broadcast", "in a large allreduce", "while others are inside a call of MPI"):
            kind = draw.choice(["kill", "terminate", "_exit"])  # a thread cannot raise for its rank
        env = {"FARANDOLE_NODE_EXCHANGE": draw.choice(["direct", "window", "none"])}
        options = [UNHELPED] if kind == "_exit" and draw.random() < 0.7 else []
        told = f"seed {seed}, run {count}: {ranks} ranks, rank {victim}, {kind} {place}, {env}, {options}"
        try:
            seconds, code, said = die(place, victim, kind, "", *options, ranks=ranks, env=env)
        except RanksFailed as error:
            raise AssertionError(told) from error
        assert seconds < LIMIT_S, f"{told}: {seconds:.1f} s, exit code {code}\n{said}"
        assert code != 0 or kind == "_exit", told
        count += 1
    print(f"{count} deaths")
