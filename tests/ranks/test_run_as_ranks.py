"""`farandole run` on ranks that mpiexec has started: one run directory, and one voice for what is wrong with its settings."""

from pathlib import Path

import numpy as np
import pytest

from ranktest import rank_test, run_ranks

SCRIPT = """
import os, sys
from farandole.cli import main
from farandole.errors import TrainingError
from farandole.train.rank import session

def run_on_rank(settings, *_, **__):
    import torch
    raise TrainingError(f"trains in {settings.output_dir} with {torch.get_num_threads()} threads")

session.run_on_rank = run_on_rank
codes = [main(["run", "nt3", *words]) for words in (["--dropout", "2"], ["-n", "2"], [], ["--output-dir", sys.argv[1], "--threads", "3"])]
result(codes)
"""


def test_one_folder_and_one_voice(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("of an earlier run")
    run = run_ranks(2, SCRIPT, args=[str(tmp_path)], cwd=tmp_path, timeout=120, env={"OMP_NUM_THREADS": "1"})
    assert run.results == [[2, 2, 1, 1]] * 2
    assert run.stderr.count("dropout=2.0: expected a fraction") == run.stderr.count("-n: the ranks are there already") == 1
    (folder,) = (tmp_path / "out").iterdir()
    assert run.stderr.count(f"trains in {folder.relative_to(tmp_path)} with 1 threads\n") == 2
    assert run.stderr.count(f"trains in {tmp_path} with 3 threads\n") == 2
    assert (tmp_path / "log.txt").read_text() == ""


@rank_test(n=[1, 2])
def test_a_file_that_rank_0_cannot_write_is_told_by_all(fd):
    from farandole.errors import TrainingError
    from farandole.train.rank.session import on_rank_0

    with pytest.raises(TrainingError, match=r"rank 0 cannot read or write a file: .*No such file or directory: 'absent/run\.json'"):
        on_rank_0(lambda: Path("absent/run.json").write_text(""))
    assert on_rank_0(fd.rank) == 0


@rank_test(n=[1, 2, 3])
def test_ranks_that_end_with_other_weights_are_named(fd):
    from farandole.errors import TrainingError
    from farandole.train.rank.session import same_weights

    weights = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(1)]
    digests = fd.allgather_object(same_weights(weights))
    assert len(set(digests)) == 1
    if fd.size() > 1:
        weights[1][0] += fd.rank() == 1
        with pytest.raises(TrainingError, match=r"ranks \[1\] end with other weights than rank 0"):
            same_weights(weights)
