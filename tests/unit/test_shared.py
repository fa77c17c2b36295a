"""Memory that ranks share leaves no file behind, and results in it can be changed by whoever reads them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from farandole.comm.bytes.transport import LocalTransport
from farandole.comm.node import shared
from farandole.comm.node.shared import ResultWindow, SharedBlock, SharingUnavailable


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where files would be left."""
    monkeypatch.setattr(shared, "FOLDER", tmp_path)
    return tmp_path


def test_a_block_is_zeroed_shared_memory_without_a_name(folder):
    block = SharedBlock(LocalTransport(), 100_000)
    assert list(folder.iterdir()) == []
    whole, part = block.view(0, (100, 250), np.float32), block.view(400, (5,), np.float32)
    assert not whole.any()
    whole[0, 100] = 7
    assert part[0] == 7


class DeadNeighbour(LocalTransport):
    """A peer that dies in the middle of things."""

    size = 2

    def allgather_object(self, value):
        raise RuntimeError("rank 1 has died")


def test_a_peer_s_death_leaves_no_file(folder):
    with pytest.raises(RuntimeError, match="has died"):
        SharedBlock(DeadNeighbour(), 4096)
    assert list(folder.iterdir()) == []


class Watching(LocalTransport):
    """Looks which files have names while a block is being shared."""

    def allgather_object(self, value):
        self.named = [path.name for path in shared.FOLDER.glob(f"{shared.PREFIX}{os.getpid()}-*")]
        return super().allgather_object(value)


def test_a_rank_that_is_killed_while_a_block_is_made_leaves_no_file(monkeypatch):
    monkeypatch.setattr(shared, "FOLDER", Path("/dev/shm"))
    node = Watching()
    SharedBlock(node, 4096)
    assert node.named == []


def test_ranks_that_do_not_see_each_other_s_processes_meet_by_a_name(folder, monkeypatch):
    def hidden(path, *options, really=os.open):
        if str(path).startswith("/proc/"):
            raise PermissionError(13, os.strerror(13))
        return really(path, *options)

    monkeypatch.setattr(os, "open", hidden)
    node = Watching()
    block = SharedBlock(node, 4096)
    assert len(node.named) == 1 and list(folder.iterdir()) == []
    assert not block.view(0, (1024,), np.float32).any()


def test_a_process_of_another_namespace_is_not_taken_for_the_neighbour(folder, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)  # which has other files open, if one may look at them
    block = SharedBlock(LocalTransport(), 4096)
    assert block.view(0, (1024,), np.float32).size == 1024 and list(folder.iterdir()) == []


def test_no_room_is_told_with_the_reason(folder, monkeypatch):
    def full(handle, offset, count):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SharingUnavailable, match=r"has no room for 40 MiB: No space left.*--shm-size"):
        SharedBlock(LocalTransport(), 40 << 20)
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(shared, "FOLDER", Path("/nonexistent"))
    with pytest.raises(SharingUnavailable, match="/nonexistent"):
        SharedBlock(LocalTransport(), 4096)


def test_memory_is_not_shared_where_nothing_orders_what_ranks_see_of_it():
    """What this process is told of its processor is all that differs: on one without a known fence, ranks share nothing."""
    script = """
        import platform
        platform.machine = lambda: "sparc64"
        from farandole.comm.node.shared import SharedBlock
        from farandole.comm.bytes.transport import LocalTransport
        SharedBlock(LocalTransport(), 4096)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert "SharingUnavailable: no memory fence known for sparc64" in run.stderr


@pytest.fixture
def window():
    window = ResultWindow(LocalTransport(), [20_000, 8, 9_000])
    yield window
    window.close()


def test_results_are_read_where_they_were_written(window):
    for index, size in enumerate((20_000, 8, 9_000)):
        window.shared(index)[:] = index + 1
        assert window.private(index).size == size
        assert (window.private(index) == index + 1).all()
    assert window.refresh() == [False, False, False]


def test_a_change_stays_with_the_rank_that_made_it_until_the_next_result(window):
    window.shared(0)[:] = 1
    window.private(0)[5000:5010] = 99
    assert (window.shared(0) == 1).all()
    assert (window.private(0)[5000:5010] == 99).all()
    window.shared(0)[:] = 2
    window.shared(2)[:] = 2
    assert window.refresh() == [True, False, False]
    assert (window.private(0) == 2).all() and (window.private(2) == 2).all()
    assert window.refresh() == [False, False, False]


def test_where_pages_cannot_be_told_apart_all_are_dropped(window):
    os.close(window._pagemap)
    window._pagemap = None
    window.shared(1)[:] = 3
    window.private(1)[:] = 5
    assert window.refresh() == [True, True, True]
    assert (window.private(1) == 3).all()
