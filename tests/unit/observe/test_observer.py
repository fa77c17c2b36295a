"""Which rank an observed process is."""

import sys
from types import SimpleNamespace

import pytest

from farandole.observe.observer import known_place

ALONE = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}


def initialised(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank, get_world_size=lambda: size
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))


@pytest.mark.parametrize("environment", [ALONE, {"PMI_RANK": "0", "PMI_SIZE": "1"}, {}])
def test_a_script_that_starts_ranks_itself_inside_a_job(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert known_place(environment) is None, "it may still start them"
    initialised(monkeypatch, 1, 2)
    assert known_place(environment) == (1, 2)


def test_ranks_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert known_place({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}) == (3, 4)
    assert known_place({**ALONE, "RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
