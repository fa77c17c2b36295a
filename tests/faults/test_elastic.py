"""Jobs that lose a rank and go on from their last commit, under `farandole launch --restarts`."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ranktest import RanksResult, run_ranks
from repository import ROOT

EXAMPLE = ROOT / "examples" / "elastic_training.py"

# Counts to 10 and commits every number; `deed` happens at 6 in the first life.
COUNTING = """
import os, signal, sys
from pathlib import Path
import numpy as np
import farandole
from farandole import elastic

farandole.init()
folder = Path(os.environ["FARANDOLE_COMMIT_DIR"])
first_life = os.environ["FARANDOLE_RESTART"] == "0"

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

@elastic.run
def count(state):
    while len(state.counted) < 10:
        state.counted.append(len(state.counted) + int(farandole.allreduce(np.ones(1), op=farandole.Min)[0]))
        if state.counted[-1] == 6:
            {deed}
        state.commit()

state = elastic.ObjectState(counted=[])
count(state)
result(state.counted)
"""
COUNTED = list(range(1, 11))


def launched(
    script: str | Path, ranks: int = 2, restarts: int = 2, options: Sequence[str] = (), cwd: Path | None = None,
    args: Sequence[str] = (), expect: int = 0,
) -> RanksResult:  # fmt: skip
    words = ["--restarts", str(restarts), *options]
    return run_ranks(
        ranks, script, launcher="farandole", launcher_args=words, args=args, cwd=cwd, expect=expect, timeout=100
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "victim"), [pytest.param(2, 1, marks=pytest.mark.more), pytest.param(3, 0, marks=pytest.mark.soak)]
)
def test_a_training_whose_rank_was_killed_ends_like_an_unbroken_one_bit_for_bit(
    tmp_path: Path, ranks: int, victim: int
) -> None:
    unbroken, broken = tmp_path / "unbroken.json", tmp_path / "broken.json"
    # Uneven: neither batches nor samples divide over 2 or 3 ranks.
    training = ["--epochs", "2", "--samples", "323", "--batch-size", "8", "--json"]
    first = run_ranks(ranks, EXAMPLE, args=[*training, str(unbroken)], timeout=100)
    assert first.stderr.count("commits stay in memory") == 1
    second = launched(EXAMPLE, ranks, args=[*training, str(broken), "--kill", str(victim)], cwd=tmp_path)
    assert json.loads(broken.read_text()) == json.loads(unbroken.read_text())
    assert f"rank {victim} failed: killed by SIGKILL" in second.stderr
    assert "starting again (1 of 2 restarts)" in second.stderr
    assert "going on from commit" in second.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"unbroken.json", "broken.json"}, "no commits are left"


CUT = "torn = max(folder.glob('run0/0*')) / 'state.json'; torn.write_bytes(torn.read_bytes()[:-9]); die()"


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        # Rank 0 may have made the sixth by then.
        ("if first_life and farandole.rank() == 1: die()", "going on from commit"),
        ("if first_life and farandole.rank() == 0: os.fsync = die", "going on from commit 5"),
        (f"if first_life and farandole.rank() == 0: {CUT}", "00000005-step-5 is damaged: state.json has"),
        ("if first_life: raise OSError('no route to the data')", "going on from commit 5"),
    ],
    ids=["between", "while writing", "and the newest is torn", "raised by all"],
)
def test_whenever_a_rank_ends_the_job_goes_on_from_a_whole_commit(deed: str, said: str) -> None:
    done = launched(COUNTING.format(deed=deed))
    assert done.results == [COUNTED, COUNTED]
    assert said in done.stderr


def test_a_job_without_restarts_left_can_be_taken_up_later_on_other_ranks(tmp_path: Path) -> None:
    script = COUNTING.format(deed="if farandole.size() == 2: die()")
    folder = tmp_path / "kept"
    ended = launched(script, restarts=1, options=["--commit-dir", str(folder)], expect=137)
    assert ended.stderr.count("failed: killed by SIGKILL") == 2
    assert f"--restarts 1 --commit-dir {folder} -- " in ended.stderr
    assert len(list(folder.glob("run0/0*"))) == 2
    later = launched(script, ranks=1, options=["--commit-dir", str(folder)])
    assert "going on from commit 5, made by 2 ranks" in later.stderr
    assert later.results == [COUNTED]
    assert not folder.exists()


def test_an_error_that_comes_back_at_the_same_commit_ends_the_job() -> None:
    done = launched(COUNTING.format(deed="raise ValueError('batch 7 is empty')"), restarts=5, expect=1)
    assert done.stderr.count("starting again") == 1
    assert "farandole: not started again: it failed as before, without a new commit" in done.stderr


def test_a_job_that_dies_before_its_first_commit_begins_anew() -> None:
    early = "import os\nif os.environ['FARANDOLE_RESTART'] == '0': os.kill(os.getpid(), 9)\n"
    done = launched(early + COUNTING.format(deed="pass"))
    assert done.results == [COUNTED, COUNTED]
    assert "starting from the beginning" in done.stderr


def test_hosts_that_changed_end_the_job_with_what_to_do(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    # One rank: rank 0 must not look while another has emptied the file to write it.
    deed = "if farandole.rank() == 0: Path(os.environ['FARANDOLE_HOSTFILE']).write_text('localhost slots=4')"
    options = ["--hostfile", str(hosts), "--commit-dir", str(tmp_path / "commits")]
    done = launched(COUNTING.format(deed=deed), options=options, expect=1)
    assert f"{hosts} has changed from localhost:2 to localhost:4. A running job can neither grow nor" in done.stderr
    assert "not started again: its hosts have changed" in done.stderr
    assert f"repeat  farandole launch -n 2 --hostfile {hosts}" in done.stderr
    again = launched(COUNTING.format(deed="pass"), options=options)
    assert "going on from commit 6" in again.stderr
    assert again.results == [COUNTED, COUNTED]
