"""What a rank started by a test can import: `result(value)` hands a value to the test that started it."""

import json
import os
from pathlib import Path
from typing import Any

from garbage import collect_less
from onrank.compiler import delay

__all__ = ["AS_SHIPPED", "RESULTS_DIR", "rank_number", "result", "to_json"]

RESULTS_DIR = "FARANDOLE_TEST_RESULTS"
"""The environment variable that says where ranks write what the test reads."""
AS_SHIPPED = "RANKS_AS_SHIPPED"
"""The environment variable with which ranks run as users' do, with nothing that makes tests faster."""

RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
"""Where mpiexec says it: MPICH's and Intel's, Open MPI's."""


def rank_number() -> int:
    """This rank as the launcher numbers it, known before MPI is."""
    return int(next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0"))


def result(value: Any) -> None:
    """Give `value` to the test; a rank's last call counts."""
    path = Path(os.environ[RESULTS_DIR]) / f"rank.{rank_number()}.json"
    path.write_text(to_json(value))


def to_json(value: Any) -> str:
    """JSON, with arrays, tensors and their scalars as plain lists and numbers."""
    return json.dumps(value, default=lambda odd: odd.tolist())


if AS_SHIPPED not in os.environ:
    delay()
    collect_less()
