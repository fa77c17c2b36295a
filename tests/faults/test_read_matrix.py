"""A rank that fails while the ranks of its node parse a file together: all end, and it is named."""

import pytest

from ranktest import run_ranks

SCRIPT = """
import os, signal, sys
import farandole as fd
from farandole.data import parse, read_matrix

fd.init()
if fd.rank() == 1:
    def fail(self, *arguments):
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("no more")
    parse.Parser.parse = fail
read_matrix("table.csv", cache=False)
"""


@pytest.mark.parametrize(
    ("how", "said"), [("kill", "rank 1 failed: killed by SIGKILL"), ("raise", "RuntimeError: no more")]
)
def test_a_rank_that_fails_while_parsing_ends_all(tmp_path, how, said):
    (tmp_path / "table.csv").write_text("1,2,3\n" * 2_000_000)  # several blocks
    run = run_ranks(2, SCRIPT, launcher="farandole", args=[how], cwd=tmp_path, expect=None, timeout=40)
    assert run.returncode != 0
    assert said in run.stderr
