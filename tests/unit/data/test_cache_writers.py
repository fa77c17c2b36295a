"""Processes that keep the same table at once, or die while they do."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farandole.data.cache import FOLDER, CacheFile, Stored, clear, entries
from farandole.data.layout import ReadOptions

WRITER = """
import os, sys, warnings
from pathlib import Path
import numpy as np
from farandole.data.cache import CacheFile, Stored
from farandole.data.layout import ReadOptions
warnings.simplefilter("error")

def place():
    return CacheFile(Path(sys.argv[1]), ReadOptions(), None)

def table():
    return Stored(np.full((200, 300), 5, np.float32), ("a",) * 300, [np.arange(200)])
"""

RACE = """
for _ in range(60):
    place().store(table())
    found = place().load()
    assert found is not None and (found.values == 5).all() and found.columns[0][-1] == 199
"""

STOPS_IN_THE_MIDDLE = """
fsync = os.fsync
def wait(handle):
    print("writing", flush=True)
    sys.stdin.readline()
    fsync(handle)
os.fsync = wait
place().store(table())
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("1,2\n")
    return path


def finish_writing() -> None:
    for thread in threading.enumerate():
        if thread.name == "farandole-data-cache":
            thread.join()


def cache_files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def writer(source: Path, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER + script, source],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_processes_that_write_the_same_file_at_once(source: Path) -> None:
    processes = [writer(source, RACE) for _ in range(3)]
    try:
        told = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert told == ["", "", ""]
    assert [entry.state for entry in entries(source.parent)] == ["current"]
    assert len(cache_files(source.parent / FOLDER)) == 1


@pytest.fixture
def unfinished(source: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A writer in the middle of its work, and its file."""
    with writer(source, STOPS_IN_THE_MIDDLE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "writing\n"
            (part,) = cache_files(source.parent / FOLDER)
            yield process, part
        finally:
            process.kill()


def test_a_killed_writer_leaves_nothing_that_is_used_or_stays(source: Path, unfinished) -> None:
    process, part = unfinished
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    (entry,) = entries(source.parent)
    assert (entry.path, entry.state) == (part, "unfinished")
    place = CacheFile(source, ReadOptions(), None)
    assert place.load() is None
    place.store(Stored(np.ones((2, 2), np.float32), None, []))
    finish_writing()
    assert cache_files(place.folder) == [place.path]


def test_a_live_writer_is_left_alone(source: Path, unfinished) -> None:
    process, part = unfinished
    place = CacheFile(source, ReadOptions(), None)
    assert place.load() is None
    place.store(Stored(np.ones((2, 2), np.float32), None, []))
    finish_writing()
    assert cache_files(place.folder) == sorted([part, place.path])
    assert {entry.path: entry.state for entry in entries(source.parent)}[part] == "being written"
    assert part not in [entry.path for entry in clear(source.parent)]
    _, complaints = process.communicate("\n", timeout=60)
    assert (process.returncode, complaints) == (0, "")
    table = place.load()
    assert table is not None and table.values.shape == (200, 300)


def test_keeping_a_table_takes_no_part_in_a_program_that_ends(source: Path) -> None:
    """The file is finished, though nobody waits for it."""
    script = WRITER + "import time; sync = os.fsync; os.fsync = lambda handle: (time.sleep(0.3), sync(handle)); place().store(table())"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script, source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and time.monotonic() - started > 0.3
    assert [entry.state for entry in entries(source.parent)] == ["current"]
