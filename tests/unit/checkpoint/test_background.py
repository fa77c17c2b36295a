"""Copies that are consistent although training goes on."""

import threading

import numpy as np
import pytest

from farandole.checkpoint.background import Background
from farandole.checkpoint.tree import Tensor, flatten
from farandole.errors import CheckpointError


@pytest.fixture
def written():
    return []


def keep(written):
    return lambda arrays: written.append({name: array.copy() for name, array in arrays.items()})


def test_what_changes_after_the_start_is_not_written(written) -> None:
    array = np.zeros(1000)
    background = Background()
    go = threading.Event()
    background.start(flatten({"w": array}), lambda arrays: go.wait(10) and keep(written)(arrays))
    array[:] = 1
    go.set()
    background.finish()
    assert (written[0]["w"] == 0).all()


def test_held_arrays_are_copied_when_settle_returns(written) -> None:
    array = np.zeros(5_000_000)
    background = Background()
    for number in range(5):
        background.start(flatten({"w": Tensor(array, lambda: True)}), keep(written))
        background.settle()
        array += 1
        background.finish()
        assert (written[-1]["w"] == number).all()


def test_a_held_array_that_was_changed_is_an_error_not_a_checkpoint(written) -> None:
    background = Background()
    background.start(flatten({"w": Tensor(np.zeros(3), lambda: False)}), keep(written))
    background.settle()
    with pytest.raises(CheckpointError, match=r"^w \(1 arrays\) was changed"):
        background.finish()
    assert written == []
    background.finish()


def test_errors_come_with_the_next_call_and_only_once() -> None:
    def fail(_):
        raise CheckpointError("no room")

    background = Background()
    background.start(flatten({"w": np.zeros(3)}), fail)
    with pytest.raises(CheckpointError, match="no room"):
        background.start(flatten({"w": np.zeros(3)}), lambda _: None)
    background.finish()


def test_arrays_may_change_their_shape_between_saves(written) -> None:
    background = Background()
    for shape in [(2, 3), (4,), ()]:
        background.start(flatten({"w": np.ones(shape)}), keep(written))
    background.finish()
    assert [one["w"].shape for one in written] == [(2, 3), (4,), ()]
