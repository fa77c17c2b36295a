"""The timeline of ranks: asked for by a script or from outside, merged by rank 0."""

import json
from pathlib import Path

import numpy as np
import pytest

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


def test_what_others_record_after_rank_0_has_ended_is_not_lost(tmp_path):
    path = tmp_path / "trace.json"
    script = """
        import time, farandole as fd
        from farandole.comm import last_words
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
        from farandole.comm import last_words
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
