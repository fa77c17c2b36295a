"""Starting, asking who and where, ending, and starting again."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from farandole.launch.place import find_place
from onrank import rank_number
from ranktest import rank_test, run_ranks

ALONE = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "SLURM_", "OMPI_"))}


def python(script, **environment):
    """A script without any launcher."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=ALONE | environment, capture_output=True, text=True, timeout=60)


@rank_test(n=[1, 2, 3])
def test_every_rank_knows_its_place(fd):
    assert fd.is_initialized()
    place = find_place(os.environ)
    assert (fd.rank(), fd.size()) == (place.rank, place.size)
    assert (fd.local_rank(), fd.local_size()) == (fd.rank(), fd.size())
    assert (fd.cross_rank(), fd.cross_size(), fd.is_homogeneous()) == (0, 1, True)
    assert fd.describe()["nodes"] == [fd.size()]


@rank_test(n=2)
def test_a_second_init_changes_nothing(fd):
    pair = fd.add_process_set([0])
    fd.init()
    fd.init(process_sets=[[0]])
    assert fd.get_process_set(pair.process_set_id) is pair
    assert fd.remove_process_set(pair)


@rank_test(n=[1, 2])
def test_init_works_again_after_shutdown(fd):
    for _ in range(3):
        assert fd.allreduce(np.ones(100_000), op=fd.Sum)[0] == fd.size()
        pending = fd.allreduce_async(np.ones(1), name="never", op=fd.Sum) if fd.rank() == 1 else None
        fd.shutdown()
        fd.shutdown()
        assert not fd.is_initialized()
        for call in (fd.rank, fd.size, fd.local_rank, fd.cross_size, lambda: fd.allreduce(np.ones(1))):
            with pytest.raises(ValueError, match=r"init\(\)"):
                call()
        if pending is not None:
            with pytest.raises(RuntimeError, match=r"allreduce\.never.*(shut down|shutdown)"):
                fd.synchronize(pending)
        fd.init()
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [fd.size()]


@rank_test(n=2)
def test_a_rank_that_shuts_down_is_named_to_those_who_wait(fd):
    fd.barrier()
    if fd.rank() == 1:
        time.sleep(0.2)
        fd.shutdown()
    else:
        with pytest.raises(RuntimeError, match=r"allreduce\.x: rank 1 has called shutdown\(\)"):
            fd.allreduce(np.ones(1), name="x")
        with pytest.raises(RuntimeError, match="rank 1 has called shutdown"):
            fd.barrier()
        fd.shutdown()
    fd.init()
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]
    fd.barrier()
    if fd.rank() == 0:  # now the coordinator leaves
        fd.shutdown()
    else:
        with pytest.raises(RuntimeError, match="rank 0 has called shutdown"):
            fd.allreduce(np.ones(1), name="x")
        fd.shutdown()
    fd.init()
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]


@rank_test(n=3)
def test_init_and_shutdown_can_go_on_all_day(fd):
    from mpi4py import MPI

    # The library has about 2000 communicators, and every world takes a few: leave it some hundred.
    taken = [MPI.COMM_SELF.Dup() for _ in range(1850)]
    for number in range(60):
        assert fd.allreduce(np.ones(100_000), op=fd.Sum)[0] == 3
        pending = fd.allreduce_async(np.ones(1), name="never") if fd.rank() == number % 3 else None
        fd.shutdown()
        fd.init(process_sets=[[0, 1]])
        del pending
    for comm in taken:
        comm.Free()
    fd.remove_process_set(fd.get_process_set(1))


@rank_test(n=3)
def test_init_registers_process_sets(fd):
    fd.shutdown()
    odd, even = fd.ProcessSet([1]), fd.ProcessSet([0, 2])
    fd.init(process_sets=[odd, even, [1, 2]])
    assert (odd.process_set_id, even.process_set_id) == (1, 2)
    assert fd.get_process_set(3).ranks == [1, 2]
    if even.included():
        assert fd.allreduce(np.array([fd.rank()]), op=fd.Sum, process_set=even).tolist() == [2]
    fd.shutdown()
    assert odd.process_set_id is None
    for wrong in ([[0, 1], [1, 0]], [[0, 1, 2]], [[5]]):
        with pytest.raises(ValueError, match=r"exists already|ranks 0 to 2"):
            fd.init(process_sets=wrong)
        assert not fd.is_initialized()
        with pytest.raises(ValueError, match=r"init\(\)"):
            fd.allreduce(np.ones(1))
    fd.init(process_sets="dynamic")
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [3]


@rank_test(n=3)
def test_init_with_some_of_the_ranks(fd):
    """Those outside the list do not call init() and are not needed."""
    fd.barrier()
    fd.shutdown()
    world_rank = rank_number()
    if world_rank != 1:
        fd.init(comm=[2, 0])
        assert (fd.size(), fd.rank()) == (2, {0: 0, 2: 1}[world_rank])
        assert fd.allreduce(np.array([world_rank]), op=fd.Sum).tolist() == [2]
        assert (fd.allreduce(np.full(200_000, 1.0), op=fd.Sum) == 2).all()
        assert fd.broadcast_object(world_rank, root_rank=1) == 2
        fd.shutdown()
    else:
        with pytest.raises(ValueError, match=r"init\(comm=\[0, 2\]\): rank 1 is not in it"):
            fd.init(comm=[0, 2])
        for wrong in ([1, 7], [], [1, 1], [-1, 1]):
            with pytest.raises(ValueError, match="ranks 0 to 2"):
                fd.init(comm=wrong)
    fd.init()


@rank_test(n=3)
def test_init_with_a_communicator_of_mpi4py(fd):
    from mpi4py import MPI

    fd.shutdown()
    me = MPI.COMM_WORLD.Get_rank()
    part = MPI.COMM_WORLD.Split(color=me // 2, key=-me)  # {1, 0} and {2}
    fd.init(comm=part)
    assert (fd.size(), fd.rank()) == [(2, 1), (2, 0), (1, 0)][me]
    assert fd.allgather_object(me) == [[1, 0], [1, 0], [2]][me]
    assert fd.local_size() == fd.size()
    part.Free()  # ours is a duplicate
    assert fd.allreduce(np.array([me]), op=fd.Sum).tolist() == [[1], [1], [2]][me]
    fd.shutdown()
    fd.init()


@rank_test(n=4)
@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 2, 3]])
def test_ranks_on_several_nodes(fd, nodes):
    fd.shutdown()
    here = nodes[rank_number()]
    os.environ["FARANDOLE_NODE"] = f"node{here}"
    try:
        fd.init()
        peers = [rank for rank, node in enumerate(nodes) if node == here]
        assert (fd.local_rank(), fd.local_size()) == (peers.index(fd.rank()), len(peers))
        with_mine = [n for n in sorted(set(nodes)) if nodes.count(n) > fd.local_rank()]
        assert (fd.cross_rank(), fd.cross_size()) == (with_mine.index(here), len(with_mine))
        assert fd.is_homogeneous() is (len({nodes.count(n) for n in nodes}) == 1)
        for dtype in ("float16", "float32", "int32", "bool"):
            for count in (3, 50_001, 400_003):
                ones = np.ones(count, dtype)
                total = fd.allreduce(ones, op=fd.Sum)
                assert (total == (True if dtype == "bool" else 4)).all()
                if dtype != "bool":
                    assert (fd.allreduce(ones * fd.rank()) == np.array(1.5).astype(dtype)).all()
        fd.shutdown()
    finally:
        del os.environ["FARANDOLE_NODE"]
    fd.init()


@rank_test(n=2)
def test_a_forked_child_is_no_rank(fd):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = [str(fd.is_initialized())]
        for call in (fd.rank, lambda: fd.allreduce(np.ones(1))):
            try:
                call()
                words.append("worked")
            except ValueError as error:
                words.append("init()" if "init()" in str(error) else str(error))
        os.write(writer, " ".join(words).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1000) == b"False init() init()"
    os.close(reader)
    os.close(writer)
    assert fd.allreduce(np.ones(1), op=fd.Sum).tolist() == [2]


def test_before_init_every_call_says_to_call_it():
    done = python("""
import numpy as np, farandole as fd, farandole.torch as hvd, torch
array, tensor = np.ones(2), torch.ones(2)
calls = {
    f"{door.__name__}.{name}": (lambda f=getattr(door, name), a=arguments: f(*a))
    for door, x in ((fd, array), (hvd, tensor))
    for names, arguments in (
        ("rank size local_rank local_size cross_rank cross_size is_homogeneous barrier describe", ()),
        ("allreduce allreduce_ allreduce_async allreduce_async_ allgather allgather_async alltoall average "
         "reducescatter broadcast_object allgather_object alltoall_async reducescatter_async", (x,)),
        ("grouped_allreduce grouped_allreduce_async grouped_allgather grouped_reducescatter "
         "check_buffers_match", ([x],)),
        ("broadcast broadcast_ broadcast_async broadcast_async_ gather gather_async", (x, 0)),
        ("add_process_set", ([0],)),
        ("start_timeline", ("t.json",)),
    )
    for name in names.split()
}
calls["DistributedOptimizer"] = lambda: hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(tensor)]))
calls["broadcast_parameters"] = lambda: hvd.broadcast_parameters({"w": tensor}, 0)
for name, call in calls.items():
    try:
        call()
        print(name, "did not fail")
    except ValueError as error:
        if "init()" not in str(error):
            print(name, error)
assert not fd.is_initialized()
fd.shutdown()
print(len(calls), "calls")
""")
    assert done.stdout == "72 calls\n", done.stdout + done.stderr


def test_without_a_launcher_there_is_one_rank():
    done = python(
        "import farandole as fd, numpy as np; fd.init(); print(fd.rank(), fd.size(), fd.allreduce(np.arange(3)))"
    )
    assert (done.stdout, done.returncode) == ("0 1 [0 1 2]\n", 0), done.stderr


def test_without_an_mpi_library_one_rank_runs():
    script = """
import numpy as np, torch, farandole.torch as hvd
hvd.init()
assert not hvd.mpi_enabled() and not hvd.mpi_built() and not hvd.mpi_threads_supported()
assert hvd.describe()["mpi"]["problem"], hvd.describe()
x = torch.ones(3, requires_grad=True)
assert hvd.allreduce(x, op=hvd.Sum).tolist() == [1, 1, 1]
assert hvd.allreduce(torch.ones(300_000, dtype=torch.bfloat16), postscale_factor=2.0)[0] == 2
assert hvd.synchronize(hvd.allgather_async(torch.ones(2))).tolist() == [1, 1]
assert hvd.broadcast_object({"a": 1}) == {"a": 1}
model = torch.nn.Linear(2, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
hvd.shutdown()
hvd.init()
hvd.barrier()
print(hvd.rank(), hvd.size())
"""
    done = python(script, MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("SLURM_NTASKS", "srun --mpi=pmi2"),
        ("OMPI_COMM_WORLD_SIZE", "mpiexec of the MPI library Python loads"),
    ],
)
def test_many_worlds_of_one_rank_are_an_error(variable, advice):
    done = python("import farandole; farandole.init(); print('training')", **{variable: "2"})
    assert done.returncode != 0
    assert f"{variable}=2 ranks were started, but MPI sees only 1" in done.stderr
    assert advice in done.stderr
    assert "training" not in done.stdout


def test_without_mpi_under_a_launcher_of_two_no_rank_trains_alone():
    done = run_ranks(
        2,
        "import farandole; farandole.init(); print('training')",
        env={"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"},
        expect=None,
    )
    assert done.returncode != 0
    assert "_SIZE=2 ranks were started" in done.stderr and "training" not in done.stdout


def test_a_setting_that_is_no_number_is_named():
    for name in ("FARANDOLE_FUSION_THRESHOLD", "FARANDOLE_STALL_CHECK_TIME_SECONDS"):
        done = python("import farandole; farandole.init()", **{name: "much"})
        assert f"SettingsError: {name}='much'" in done.stderr, done.stderr


def test_ranks_leave_no_files_and_may_end_at_different_times(tmp_path: Path):
    script = """
        import time, farandole as fd, numpy as np
        fd.init()
        fd.allreduce(np.ones(500_000))
        fd.synchronize(fd.allreduce_async(np.ones(5)))
        time.sleep(0.5 * fd.rank())
    """
    run_ranks(3, script, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_slower_way_on_another_node_is_told_by_rank_0():
    script = """
        import os, warnings, numpy as np, farandole as fd
        if rank_number() > 0:
            os.environ["FARANDOLE_NODE_EXCHANGE"] = "none"
        os.environ["FARANDOLE_NODE"] = "a" if rank_number() == 0 else "b"
        fd.init()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fd.allreduce(np.ones(200_000))
        result([fd.describe()["fallbacks"], len(said)])
    """
    found = run_ranks(3, script, timeout=60).results
    assert [fallbacks for fallbacks, _ in found] == [["FARANDOLE_NODE_EXCHANGE=none"]] * 3
    assert [count for _, count in found] == [1, 0, 0]


def test_gradients_that_nothing_is_compiled_for_do_not_import_the_compiler() -> None:
    script = """
import sys
import numpy as np
import farandole as fd
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.gradients.interface import Entry, PlanSettings
from farandole.comm.gradients.opening import make_plan
from farandole.comm.named.process_sets import global_process_set
from farandole.comm.gradients.team import Team

fd.init()

def imported_for(dtype):
    plan = make_plan(global_process_set.runtime(), dtype, [Entry("0", dtype, (1 << 20,))], PlanSettings(how=Reduction("sum"), team=Team()))
    plan.ready(0, np.full(1 << 20, fd.rank() + 1, dtype))
    plan.finish()
    assert (plan.result(0) == 3).all()
    return "numba" in sys.modules

result([imported_for("int32"), imported_for("float32")])
"""
    assert run_ranks(2, script).results == [[False, True]] * 2
