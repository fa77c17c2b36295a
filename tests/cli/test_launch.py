"""`farandole launch` when all goes well: what ranks see, and what users see of them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import farandole
from ranktest import run_ranks

# Without MPI: quick to start, and enough where only the launcher is looked at.
TELL = """
import json, os, sys
result({name: os.environ.get(name) for name in sys.argv[1:]} | {"cores": len(os.sched_getaffinity(0))})
"""
TUNED = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"]


@pytest.fixture
def tmpdir_of_job() -> Iterator[Path]:
    """Where the job's private directory is made; it has to be gone again afterwards."""
    with TemporaryDirectory(prefix="fd") as folder:
        yield Path(folder)
        assert list(Path(folder).iterdir()) == []


def variables(
    ranks: int, names: Sequence[str], options: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    return run_ranks(ranks, TELL, launcher="farandole", launcher_args=options, args=names, env=env).results


def test_lines_carry_their_rank_and_nothing_is_left(tmpdir_of_job: Path) -> None:
    script = "import os, sys; r = os.environ['PMI_RANK']; print('out', r); print('err', r, file=sys.stderr)"
    done = run_ranks(3, script, launcher="farandole", env={"TMPDIR": str(tmpdir_of_job)})
    assert sorted(done.stdout.splitlines()) == ["[0] out 0", "[1] out 1", "[2] out 2"]
    told = [line for line in done.stderr.splitlines() if not line.startswith("farandole:")]
    assert sorted(told) == ["[0] err 0", "[1] err 1", "[2] err 2"]


def test_one_rank_has_the_terminal_to_itself() -> None:
    assert run_ranks(1, "print('plain')", launcher="farandole").stdout == "plain\n"


def test_horovodruns_habits(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "farandole", "launch", "-np", "2", "-H", "localhost:2", "python", "-c", "import sys; print(sys.argv[1:])", "-n", "5"],
        capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert sorted(told.stdout.splitlines()) == ["[0] ['-n', '5']", "[1] ['-n', '5']"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_timeline_that_no_rank_records_is_told_of(tmp_path: Path, ranks: int) -> None:
    path = tmp_path / "tl.json"
    options = ["--timeline", str(path), "--power"]
    said = "farandole: no rank has recorded a timeline: call farandole.init() in the program, or use farandole observe"
    assert run_ranks(ranks, "pass", launcher="farandole", launcher_args=options).stderr.splitlines().count(said) == 1
    path.write_text("of another run")
    assert said in run_ranks(ranks, "pass", launcher="farandole", launcher_args=options).stderr
    assert path.read_text() == "of another run"
    assert said not in run_ranks(ranks, "import farandole; farandole.init()", launcher="farandole", launcher_args=options).stderr


def test_arguments_reach_the_command_as_they_are() -> None:
    odd = ["", "a b", "$HOME", "'\"\\", ":", "--", "é\n", "*"]
    script = "import sys; result(sys.argv[1:])"
    assert run_ranks(2, script, launcher="farandole", args=odd).results == [odd, odd]


@pytest.mark.parametrize(("ranks", "read"), [("1", ["100000"]), ("2", ["[0] 0", "[1] 0"])])
def test_one_rank_reads_what_is_piped_in_and_several_read_nothing(
    ranks: str, read: list[str], tmp_path: Path
) -> None:
    words = ["launch", "-n", ranks, "--", "python", "-c", "import sys; print(len(sys.stdin.read()))"]
    told = subprocess.run(
        [sys.executable, "-m", "farandole", *words], input="x" * 100_000, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )  # fmt: skip
    assert sorted(told.stdout.splitlines()) == read


def test_ranks_know_who_launched_them(tmp_path: Path) -> None:
    names = [
        "FARANDOLE_LAUNCHED",
        "FARANDOLE_LAUNCH_SIZE",
        "FARANDOLE_TIMELINE",
        "FARANDOLE_STALL_CHECK_TIME_SECONDS",
    ]
    options = ["--timeline-filename", str(tmp_path / "t.json"), "--stall-warning", "7"]
    for told in variables(2, names, options):
        assert [told[name] for name in names] == ["1", "2", str(tmp_path / "t.json"), "7"]


def test_threads_are_shared_out_and_the_allocator_is_tuned() -> None:
    names = ["OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "PJRT_NPROC", "FARANDOLE_THREADS", *TUNED]
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    for told in variables(2, names):
        assert [told[name] for name in names] == [*[share] * 4, "1073741824", "4294967296"]


def test_what_the_user_set_stays_as_it_is() -> None:
    names = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "FARANDOLE_THREADS", "FARANDOLE_TUNE", *TUNED]
    env = {"OMP_NUM_THREADS": "5", "MALLOC_TRIM_THRESHOLD_": "9"}
    for told in variables(2, names, env=env):
        assert [told[name] for name in names] == ["5", "5", "5", None, None, "9"]


def test_torch_gets_its_share_unless_the_script_says_otherwise() -> None:
    script = """
        import torch, farandole.torch as hvd
        own = torch.get_num_threads() + 1
        hvd.init()
        given = torch.get_num_threads()
        hvd.shutdown()
        torch.set_num_threads(own)
        hvd.init()
        result([given, torch.get_num_threads() == own])
    """
    env = {"OMP_NUM_THREADS": "2"}
    assert run_ranks(1, script, launcher="farandole", launcher_args=["--threads", "1"], env=env).results == [[1, True]]


def test_threads_tuning_and_binding_by_option() -> None:
    names = ["OMP_NUM_THREADS", "FARANDOLE_TUNE", *TUNED]
    for told in variables(2, names, ["--threads", "1", "--bind", "core", "--no-tune"], env={"OMP_NUM_THREADS": "5"}):
        assert [told[name] for name in names] == ["1", "0", None, None]
        assert told["cores"] == 1


def test_output_dir_holds_a_file_a_rank_and_a_record(tmp_path: Path) -> None:
    script = "import os, sys; r = os.environ['PMI_RANK']; print('out', r); print('err', r, file=sys.stderr)"
    done = run_ranks(2, script, launcher="farandole", launcher_args=["--output-dir", str(tmp_path / "run")])
    assert done.stdout == ""
    assert [(tmp_path / f"run/rank.{rank}.out").read_text() for rank in range(2)] == ["out 0\n", "out 1\n"]
    assert [(tmp_path / f"run/rank.{rank}.err").read_text() for rank in range(2)] == ["err 0\n", "err 1\n"]
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["exit_code"] == 0
    assert record["repeat"].startswith("farandole launch -n 2 --output-dir")
    assert [(rank["rank"], rank["exit_code"], rank["stdout"]) for rank in record["rank"]] == [
        (0, 0, "rank.0.out"),
        (1, 0, "rank.1.out"),
    ]


def test_very_much_output_arrives_whole() -> None:
    script = """
    import sys
    sys.stdout.buffer.write((b"x" * 79 + b"\\n") * 200_000 + b"y" * 3_000_000 + b"\\n")
    """
    done = run_ranks(2, script, launcher="farandole")
    for rank in range(2):
        lines = [line[4:] for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines[:200_000] == ["x" * 79] * 200_000
        assert "".join(lines[200_000:]) == "y" * 3_000_000


def test_a_reader_that_goes_away_ends_the_job() -> None:
    words = ["launch", "-n", "2", "--", "python", "-c", "while True: print('x' * 1000)"]
    process = subprocess.Popen(
        [sys.executable, "-m", "farandole", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(60) == 128 + 13
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_more_ranks_than_cores_is_said_once() -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    assert run_ranks(ranks, "", launcher="farandole").stderr.count(f"{ranks} ranks share") == 1


def test_a_job_within_a_rank_is_a_job_of_its_own() -> None:
    script = """
    import os, subprocess, sys
    words = [sys.executable, "-m", "farandole", "launch", "-n", "2", "--", sys.executable, "-c",
             "import farandole; farandole.init(); print(farandole.size())"]
    if os.environ["PMI_RANK"] == "0":
        result(subprocess.run(words, capture_output=True, text=True, timeout=50, stdin=subprocess.DEVNULL).stdout)
    """
    assert sorted(run_ranks(3, script, launcher="farandole").by_rank[0].splitlines()) == ["[0] 2", "[1] 2"]


def test_without_mpiexec_one_rank_runs_and_two_say_what_to_install(tmp_path: Path) -> None:
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.symlink_to(Path(sys.executable).resolve())
    env = {"PYTHONPATH": str(Path(farandole.__file__).parents[1]), "PATH": ""}

    def launch(ranks: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bare, "-m", "farandole", "launch", "-n", ranks, "--", "python", "-c", "print('ran')"],
            capture_output=True, text=True, timeout=60, check=False, env=env, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    assert launch("1").stdout == "ran\n"
    two = launch("2")
    assert two.returncode == 1
    assert "pip install 'farandole[mpi]'" in two.stderr


FAILS = "echo 'no licence for today' >&2; exit 5"
ODD = '[ "$1" = --version ] && exit 0\nshift 2; for _ in 1 2; do "$@" & done; wait'


@pytest.mark.parametrize(
    ("mpiexec", "said"),
    [
        (FAILS, "mpiexec ended with code 5 before ranks 0, 1\n  no licence for today\n"),
        (ODD, "mpiexec has started rank 0 of 1 instead of one of 2"),
    ],
)
def test_an_mpiexec_that_does_not_do_its_work_is_named(tmp_path: Path, mpiexec: str, said: str) -> None:
    bare = tmp_path / "bin" / "python"
    bare.parent.mkdir()
    bare.symlink_to(Path(sys.executable).resolve())
    (tmp_path / "bin" / "mpiexec").write_text(f"#!/bin/sh\n{mpiexec}\n")
    (tmp_path / "bin" / "mpiexec").chmod(0o755)
    env = {"PYTHONPATH": str(Path(farandole.__file__).parents[1]), "PATH": "/usr/bin:/bin"}
    told = subprocess.run(
        [bare, "-m", "farandole", "launch", "-n", "2", "--", "true"],
        capture_output=True, text=True, timeout=60, check=False, env=env, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert told.returncode == 1
    assert said in told.stderr
