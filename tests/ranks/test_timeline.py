"""The timeline of ranks: asked for by a script or from outside, merged by rank 0."""

import json
from pathlib import Path

import numpy as np
import pytest

from farandole.observe.analysis import analyse
from farandole.observe.merge import merge_parts
from ranktest import run_ranks


def names_by_rank(path):
    """What each rank has recorded: the names of spans and marks."""
    events = [event for event in json.loads(Path(path).read_text()) if event["ph"] in "Xi"]
    return [{event["name"] for event in events if event["pid"] == rank} for rank in range(2)]


def record(fd, path, mark_cycles):
    fd.start_timeline(path, mark_cycles=mark_cycles)
    fd.allreduce(np.ones(3), name="recorded")
    fd.stop_timeline()
    fd.allreduce(np.ones(3), name="later")


def two_timelines(fd, directory):
    for number, mark_cycles in enumerate((False, True)):
        record(fd, f"{directory}/{number}.json", mark_cycles)
    return [Path(directory, f"{number}.json").read_text().count("later") for number in range(2) if fd.rank() == 0]


def test_a_script_records_a_part_of_itself(ranks, tmp_path):
    assert ranks(2, two_timelines, str(tmp_path))[0] == [0, 0]
    plain, marked = (names_by_rank(tmp_path / f"{number}.json") for number in range(2))
    assert all({"ALLREDUCE", "NEGOTIATE_ALLREDUCE"} <= names and "CYCLE_START" not in names for names in plain)
    assert all("CYCLE_START" in names for names in marked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]


INNER = {
    "MPI_ALLREDUCE": "ALLREDUCE", "MPI_ALLGATHER": "ALLGATHER", "MPI_GATHER": "GATHER", "MPI_BCAST": "BROADCAST",
    "MPI_ALLTOALL": "ALLTOALL", "MEMCPY_IN_FUSION_BUFFER": "ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER": "ALLREDUCE",
}  # fmt: skip


def move_data_in_every_way(fd, path):
    fd.start_timeline(path)
    fd.grouped_allreduce([np.ones(3), np.ones(4)])
    fd.allgather(np.ones(3))
    fd.gather(np.ones(3), 0)
    fd.broadcast(np.ones(3), 0)
    fd.alltoall(np.ones(4))
    fd.stop_timeline()


def reduce_much(fd, path):
    import torch

    import farandole.torch as hvd

    weight = torch.zeros(5, requires_grad=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    fd.start_timeline(path)
    fd.allreduce_(np.ones(1 << 20))
    weight.sum().backward()
    optimizer.step()
    fd.stop_timeline()


def test_what_an_operation_consists_of_has_horovod_s_names(ranks, tmp_path):
    path = tmp_path / "trace.json"
    ranks(2, move_data_in_every_way, str(path))
    spans = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    for rank in range(2):
        mine = [span for span in spans if span["pid"] == rank]
        for inner, outer in INNER.items():
            part = next(span for span in mine if span["name"] == inner)
            whole = next(span for span in mine if span["name"] == outer and span["tid"] == part["tid"])
            assert whole["ts"] <= part["ts"] and part["ts"] + part["dur"] <= whole["ts"] + whole["dur"], (inner, rank)


def test_what_a_reduction_in_shared_memory_consists_of_has_horovod_s_names(ranks, tmp_path):
    path = tmp_path / "trace.json"
    ranks(2, reduce_much, str(path))
    assert all({"WAIT_FOR_DATA", "NODE_REDUCE", "MEMCPY_IN_FUSION_BUFFER"} <= names for names in names_by_rank(path))


def test_what_an_operation_consists_of_is_not_counted_twice(ranks, tmp_path):
    path, without = tmp_path / "trace.json", tmp_path / "without.json"
    ranks(2, move_data_in_every_way, str(path))
    lines = path.read_text().splitlines()
    kept = [line for line in lines if not any(f'"name":"{inner}"' in line for inner in INNER)]
    assert len(kept) <= len(lines) - 2 * len(INNER)
    without.write_text("\n".join(kept))
    assert analyse(without)["ranks"] == analyse(path)["ranks"]


@pytest.mark.parametrize("variable", ["FARANDOLE_TIMELINE", "HOROVOD_TIMELINE"])
def test_mpiexec_s_ranks_merge_theirs_when_they_end(variable, tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import numpy as np, farandole as fd
        fd.init()
        fd.allreduce(np.ones(3))
    """
    run_ranks(2, script, env={variable: str(path)}, timeout=60)
    assert all("ALLREDUCE" in names for names in names_by_rank(path))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_timeline_begins_where_its_ranks_have_begun(tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import time, farandole as fd
        time.sleep(0.5)
        fd.init()
        with fd.observe.energy("work"):
            time.sleep(0.2)
    """
    run_ranks(2, script, env={"FARANDOLE_TIMELINE": str(path)}, timeout=60)
    found = analyse(path)
    assert min(band["start_s"] for band in found["bands"]) == 0
    for rank in found["ranks"]:
        assert rank["phases"]["start"] > 0.5 and rank["phases"]["work"] >= 0.2
        assert sum(rank["phases"].values()) == pytest.approx(rank["total_s"], abs=0.1), "nothing is left out"


def test_only_the_first_init_tells_the_start(tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import time, farandole as fd
        time.sleep(0.5)
        fd.init()
        fd.shutdown()
        fd.init()
        fd.barrier()
    """
    run_ranks(2, script, env={"FARANDOLE_TIMELINE": str(path)}, timeout=60)
    found = analyse(path)
    assert [rank["phases"] for rank in found["ranks"]] == [{}, {}]
    assert max(rank["total_s"] for rank in found["ranks"]) < 0.5


def test_what_others_record_after_rank_0_has_ended_is_not_lost(tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import time, farandole as fd
        from farandole.comm.world import last_words
        from farandole.observe import timeline
        last_words.MEET_S = 0.2
        fd.init()
        if fd.rank() == 1:
            time.sleep(1.5)
            now = time.monotonic_ns()
            timeline.span("training", "LATE", now, now + 1000)
        fd.stop_timeline()
    """
    run = run_ranks(2, script, env={"FARANDOLE_TIMELINE": str(path)}, timeout=60)
    assert "other ranks still record" in run.stderr and f"farandole timeline merge {path}" in run.stderr
    assert "LATE" not in names_by_rank(path)[1]
    merge_parts(path)
    assert "LATE" in names_by_rank(path)[1]
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_ranks_of_two_nodes_may_stop_at_different_times(tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import os, time, numpy as np, farandole as fd
        from farandole.comm.world import last_words
        last_words.MEET_S = 0.5
        os.environ["FARANDOLE_NODE"] = str(rank_number())
        fd.init()
        fd.allreduce(np.ones(3))
        if fd.rank() == 0:
            time.sleep(1.5)
        fd.stop_timeline()
        result(fd.allreduce(np.ones(3), op=fd.Sum)[0])
    """
    run = run_ranks(2, script, env={"FARANDOLE_TIMELINE": str(path)}, timeout=60)
    assert run.results == [2, 2]
    assert all("ALLREDUCE" in names for names in names_by_rank(path))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
