"""Which rank an observed process is: as its launcher says, or torch.distributed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.observe.analysis import analyse
from farandole.observe.merge import merge_parts
from farandole.observe.observing import observing_environment

WORKS = """
import farandole
with farandole.observe.energy("work"):
    pass
"""
# A group of two processes, of which only this one is there.
INITIALISES = """
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
"""
ALONE = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "PMI_", "OMPI_", "SLURM_", "FARANDOLE", "HOROVOD")


def seen(folder: Path, script: str, launched: dict[str, str]) -> tuple[list[int], list[int]]:
    """The rank that was recorded, and the others that are missing."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=observing_environment(folder, base | launched), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    path = merge_parts(folder / "timeline.json")
    assert path is not None
    found = analyse(path)
    return [rank["rank"] for rank in found["ranks"]], found["missing_ranks"]


@pytest.mark.parametrize(
    ("launched", "rank", "others"),
    [
        ({}, 0, []),
        (ALONE, 0, []),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, 0, []),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, 3, [0, 1, 2]),
        ({**ALONE, "RANK": "1", "WORLD_SIZE": "2"}, 1, [0]),
    ],
)
def test_ranks_of_a_launcher(tmp_path: Path, launched: dict[str, str], rank: int, others: list[int]) -> None:
    assert seen(tmp_path, WORKS, launched) == ([rank], others)


def test_a_script_that_starts_ranks_itself_inside_a_job(tmp_path: Path) -> None:
    # What is seen before it has is kept until the rank is known.
    assert seen(tmp_path, WORKS + INITIALISES + WORKS, ALONE) == ([1], [0])
