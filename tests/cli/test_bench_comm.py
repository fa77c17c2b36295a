"""`farandole bench comm`: on ranks it starts, on those it was started on, and when something is wrong."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ranktest import run_ranks

COLLECTIVES = ("allreduce", "broadcast", "allgather", "reducescatter")
ON_NODES = """
import os, sys
os.environ["FARANDOLE_NODE"] = "ab"[int(os.environ["PMI_RANK"]) // 2]
from farandole.cli import main
sys.exit(main(["bench", "comm", *sys.argv[1:]]))
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "farandole", "bench", "comm", *words]


def bench(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=cwd, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def ways(scope: dict[str, Any], collective: str) -> set[str]:
    return {row["way"] for row in scope["figures"] if row["collective"] == collective}


def test_two_ranks_of_its_own(tmp_path: Path) -> None:
    sizes = ["8", "4K", "64K", "2M"]
    words = ("-n", "2", "--sizes", ",".join(sizes), "--seconds", "0.05", "--collectives", ",".join(COLLECTIVES))
    told = bench(*words, "--json", "comm.json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    for shown in ("allreduce within a node (2 ranks)", "reducescatter within", "bus MB/s", "64 KiB", "alpha us"):
        assert shown in told.stdout
    assert max(len(line) for line in told.stdout.splitlines()) <= 110
    assert "16/16 node: reducescatter of 2 MiB on 2 ranks" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["comm.json"]

    found = json.loads((tmp_path / "comm.json").read_text())
    assert (found["kind"], found["schema"], found["ranks"]) == ("farandole bench comm", 1, 2)
    assert found["mpi"]["library"]
    assert [node["ranks"] for node in found["nodes"]] == [[0, 1]]
    (scope,) = found["scopes"]
    assert ways(scope, "allreduce") == {"gradient", "by name", "MPI"}
    assert len(scope["figures"]) == len(sizes) * (3 + 2 + 2 + 2)
    for row in scope["figures"]:
        assert 0 < row["min_s"] <= row["median_s"] <= row["p95_s"]
        assert row["turns"] >= 5
    assert {(fitted["collective"], fitted["way"]) for fitted in scope["fits"]} == {
        (row["collective"], row["way"]) for row in scope["figures"]
    }
    for fitted in scope["fits"]:
        assert fitted["pieces"][-1]["up_to_bytes"] is None
        assert all(piece["rms_error"] >= 0 for piece in fitted["pieces"])


@pytest.mark.more
def test_ranks_of_two_nodes_are_measured_within_across_and_together(tmp_path: Path) -> None:
    words = ["--sizes", "8,40,2M", "--seconds", "0.05", "--collectives", "allreduce,allgather", "--json", "comm.json"]
    told = run_ranks(4, ON_NODES, args=words, cwd=tmp_path, timeout=120)
    found = json.loads((tmp_path / "comm.json").read_text())
    scopes = {scope["scope"]: scope for scope in found["scopes"]}
    assert {name: (scope["ranks"], scope["nodes"]) for name, scope in scopes.items()} == {
        "node": ([0, 1], 1),
        "across": ([0, 2], 2),
        "all": ([0, 1, 2, 3], 2),
    }
    # What is gathered is divided evenly among the ranks.
    assert {row["bytes"] for row in scopes["all"]["figures"] if row["collective"] == "allgather"} == {16, 48, 2 << 20}
    assert told.stdout.count("allreduce across nodes, one rank of each (2 ranks)") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "farandole bench comm -n 2"),
        (["-n", "1"], "-n 1: one rank has nobody to communicate with"),
        (["-n", "2", "--sizes", "8,much"], "'much' is not a size"),
        (["-n", "2", "--collectives", "allreduce,scan"], "allreduce,broadcast,allgather,reducescatter"),
        (["-n", "2", "--seconds", "0"], "--seconds 0"),
        (["-n", "2", "--json", "no/such/folder/comm.json"], "cannot be written: No such file or directory"),
        (["-n", "2", "--json", "."], "is a folder"),
    ],
)
def test_mistakes_are_explained_in_one_line_before_anything_is_measured(
    words: list[str], said: str, tmp_path: Path
) -> None:
    told = bench(*words, cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("farandole: ")
    assert said in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_mistake_is_told_once_on_many_ranks() -> None:
    script = "import sys; from farandole.cli import main; sys.exit(main(['bench', 'comm', *sys.argv[1:]]))"
    told = run_ranks(3, script, args=["--json", "no/such/folder/comm.json"], timeout=60, expect=None)
    assert told.returncode != 0
    assert told.stderr.count("cannot be written") == 1


def test_a_rank_killed_while_they_measure_ends_it_and_is_named(tmp_path: Path) -> None:
    sizes = ",".join(str(8 * number) for number in range(1, 101))
    words = ("-n", "2", "--sizes", sizes, "--seconds", "0.257", "--json", "comm.json")
    process = subprocess.Popen(
        command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stderr is not None
        while "1/100" not in (line := process.stderr.readline()):
            assert line, "it ended before it measured"
        os.kill(a_rank("0.257"), signal.SIGKILL)
        shown, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 128 + signal.SIGKILL
    assert "failed: killed by SIGKILL" in said
    assert "not measured to the end. Type again: farandole bench comm -n 2" in said
    assert shown == ""
    assert not list(tmp_path.iterdir())


def a_rank(seconds: str) -> int:
    """The process of a rank that measures for so many seconds."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = path.read_bytes()
            if b"farandole.study.comm.on_ranks" in words and seconds.encode() in words:
                return int(path.parent.name)
    raise AssertionError("no rank is there")
