"""Copies that are consistent although training goes on."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from farandole.checkpoint import read
from farandole.checkpoint.background import Background
from farandole.checkpoint.held import Held
from farandole.checkpoint.tree import Tensor, flatten
from farandole.errors import CheckpointError


@pytest.fixture
def written():
    return []


def keep(written):
    return lambda arrays: written.append({name: content(array) for name, array in arrays.items()})


def content(array):
    """As a file would have it, in two parts."""
    if not isinstance(array, Held):
        return array.copy()
    into, half = np.empty(array.nbytes, np.uint8), array.nbytes // 2
    array.take(0, half, into[:half])
    array.take(half, array.nbytes, into[half:])
    return into.view(array.dtype).reshape(array.shape)


def told_to_read_in_place(array) -> Background:
    """By a save that was read long before its owner came back."""
    background = Background()
    background.start(flatten({"w": Tensor(array, lambda: True)}), keep([]))
    background.finish()
    time.sleep(0.1)
    background.settle()
    background._copies.clear()
    return background


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
    with pytest.raises(CheckpointError, match=r"^w was changed"):
        background.finish()
    assert written == []
    background.finish()


def test_an_owner_who_stays_away_costs_no_copy(written) -> None:
    array = np.arange(1000.0)
    background = told_to_read_in_place(array)
    background.start(flatten({"w": Tensor(array, lambda: True)}), keep(written))
    background.finish()
    background.settle()
    array += 1
    assert (written[0]["w"] == np.arange(1000.0)).all()
    assert background._copies == {}


def test_an_owner_who_comes_back_early_gets_its_arrays_and_the_save_the_rest(written) -> None:
    array, half_read, go_on = np.arange(1000.0), threading.Event(), threading.Event()

    def write(arrays):
        into = np.empty(8000, np.uint8)
        arrays["w"].take(0, 3000, into[:3000])
        half_read.set()
        assert go_on.wait(10)
        arrays["w"].take(3000, 8000, into[3000:])
        written.append(into.view(float))

    background = told_to_read_in_place(array)
    background.start(flatten({"w": Tensor(array, lambda: True)}), write)
    assert half_read.wait(10)
    background.settle()
    array += 1
    go_on.set()
    background.finish()
    assert (written[0] == np.arange(1000.0)).all()


def test_a_change_while_it_is_read_in_place_is_an_error(written) -> None:
    background = told_to_read_in_place(np.zeros(100))
    background.start(flatten({"w": Tensor(np.zeros(100), lambda: False)}), keep(written))
    with pytest.raises(CheckpointError, match=r"^w was changed"):
        background.finish()
    assert written == []


def test_nobody_waits_for_arrays_of_a_save_that_has_failed() -> None:
    def fail(_):
        raise OSError("gone")

    background = told_to_read_in_place(np.zeros(100))
    background.start(flatten({"w": Tensor(np.zeros(100), lambda: True)}), fail)
    with pytest.raises(OSError, match="gone"):
        background.finish()
    background.settle()
    assert background._copies == {}


def test_arrays_that_are_no_single_stretch_of_memory_are_copied_at_once(written) -> None:
    array = np.arange(12.0).reshape(3, 4).T
    background = Background()
    background.start(flatten({"w": Tensor(array, lambda: True)}), keep(written))
    array += 1
    background.finish()
    assert (written[0]["w"] == np.arange(12.0).reshape(3, 4).T).all()


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


ENDS_AT_ONCE = """
import sys, threading, time
import numpy as np
from farandole.checkpoint.background import Background
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store
from farandole.checkpoint.tree import flatten
from pathlib import Path

store = Store(Path(sys.argv[1]), Keep(), print)
manifest = Manifest(step=1, epoch=0, ranks=1, saved_at=0.0, train_s=0.0, energy_j=None, version="test", metrics={})
flat = flatten({"w": np.arange(3_000_000.0)}, "")

def write(arrays):
    while threading.main_thread().is_alive():  # until the interpreter waits for its threads
        time.sleep(0.01)
    store.write(manifest, {"parts": flat.skeleton}, arrays)

background = Background()
background.start(flat, write)
"""


def test_a_program_that_ends_during_a_save_has_saved(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE, tmp_path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert (read(tmp_path)["w"] == np.arange(3_000_000.0)).all()
