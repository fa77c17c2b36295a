"""Folders of checkpoints: what is damaged is seen, what is whole is never lost."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from farandole.checkpoint import lock, read
from farandole.checkpoint import store as store_module
from farandole.checkpoint.blocks import Damaged
from farandole.checkpoint.folder import ARRAYS, LATEST, MANIFEST, STATE, check, entries
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store
from farandole.errors import CheckpointError, SettingsError


def manifest(step: int, **metrics: float) -> Manifest:
    return Manifest(
        step=step, epoch=0, ranks=1, saved_at=0.0, train_s=1.5, energy_j=None, version="test", metrics=dict(metrics)
    )


def save(store: Store, step: int, **metrics: float) -> Path:
    state = {"parts": {"w": {"$array": "w"}}, "step": step}
    return store.write(manifest(step, **metrics), state, {"w": np.full(300, step, np.float32)}).path


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def opened(tmp_path: Path, said: list[str]) -> Iterator[Callable[..., Store]]:
    """Opens the test's folder; one at a time."""
    stores: list[Store] = []

    def open_it(**keep: object) -> Store:
        for store in stores:
            store.close()
        stores.append(Store(tmp_path / "run", Keep(**keep), said.append))  # type: ignore[arg-type]
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def steps(store: Store) -> list[int]:
    return [entry.step for entry in entries(store.folder) if not entry.kind]


def newest_step(store: Store) -> int | None:
    loaded = store.newest()
    if loaded is None:
        return None
    assert (loaded.arrays["w"] == loaded.state["step"]).all()
    assert loaded.manifest.step == loaded.state["step"]
    return int(loaded.state["step"])


def test_nothing_is_there_at_first(opened) -> None:
    assert opened().newest() is None


def test_the_newest_comes_back(opened) -> None:
    store = opened()
    for step in (10, 20, 5):  # the last one is the newest, whatever its step
        path = save(store, step)
    assert newest_step(opened()) == 5
    assert (path.parent / LATEST).read_text() == f"{path.name}\n"
    assert (read(path.parent)["w"] == 5).all()
    assert (read(path.parent / "00000002-step-20")["w"] == 20).all()


@pytest.mark.parametrize("name", [MANIFEST, STATE, ARRAYS])
def test_a_missing_file_means_the_one_before(opened, said, name: str) -> None:
    store = opened()
    save(store, 1)
    (save(store, 2) / name).unlink()
    assert newest_step(opened()) == 1
    assert f"00000002-step-2 is damaged: {name} is missing" in said[0]


@pytest.mark.parametrize("name", [MANIFEST, STATE, ARRAYS])
def test_every_truncation_is_seen(opened, name: str) -> None:
    path = save(opened(), 2) / name
    whole = path.read_bytes()
    for length in sorted({*range(0, len(whole), 37), 1, 7, 8, 9, len(whole) - 1}):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=name.replace(".", r"\.")):
            check(entries(path.parent.parent)[0])
    path.write_bytes(whole)
    check(entries(path.parent.parent)[0])


@pytest.mark.parametrize("name", [MANIFEST, STATE, ARRAYS])
def test_every_flipped_bit_is_seen(opened, name: str) -> None:
    path = save(opened(), 2) / name
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged):
            check(entries(path.parent.parent)[0])


def test_a_damaged_one_is_set_aside_and_named_once(opened, said) -> None:
    store = opened(last=2)
    save(store, 1)
    path = save(store, 2) / ARRAYS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store = opened(last=2)
    assert newest_step(store) == 1
    (text,) = said
    assert text.startswith(
        f"{path.parent} is damaged: {ARRAYS} does not fit its checksum between byte 0 and {len(data):,}."
    )
    assert text.endswith("It is set aside as damaged-00000002-step-2; the one before is tried")
    said.clear()
    save(store, 3)
    assert steps(store) == [1, 3]  # the damaged one takes nobody's place
    assert newest_step(opened()) == 3
    assert said == []


def test_all_damaged_means_none(opened, said) -> None:
    store = opened()
    for path in [save(store, 1), save(store, 2)]:
        (path / MANIFEST).write_text("{}")
    assert newest_step(opened()) is None
    assert len(said) == 2


def test_one_of_another_version_is_named_and_left_alone(opened, said, monkeypatch) -> None:
    store = opened()
    save(store, 1)
    monkeypatch.setattr("farandole.checkpoint.manifest.FORMAT", "farandole checkpoint 2")
    path = save(store, 2)
    monkeypatch.undo()
    assert newest_step(opened()) == 1
    assert said[-1].startswith(f"{path} cannot be used: {MANIFEST} is not of the format 'farandole checkpoint 1'")
    assert path.is_dir()


@pytest.mark.parametrize("content", [None, b"", b"00000001-step-1\n", b"elsewhere\n", b"\xff"])
def test_the_pointer_to_the_newest_may_be_lost(opened, content: bytes | None) -> None:
    store = opened()
    save(store, 1)
    latest = save(store, 2).parent / LATEST
    latest.unlink()
    if content is not None:
        latest.write_bytes(content)
    assert newest_step(opened()) == 2
    save(opened(), 3)
    assert latest.read_text() == "00000003-step-3\n"


def test_files_of_another_checkpoint_are_no_good(opened) -> None:
    store = opened()
    first, second = save(store, 1), save(store, 2)
    shutil.copy(first / MANIFEST, second / MANIFEST)
    assert newest_step(opened()) == 1


def test_what_was_left_unfinished_is_removed_and_no_more(opened, tmp_path: Path) -> None:
    store = opened()
    save(store, 1)
    stale = store.folder / "unfinished-00000002-step-2"
    stale.mkdir()
    (stale / ARRAYS).write_bytes(b"half")
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / "results").mkdir()
    assert newest_step(opened()) == 1
    assert sorted(p.name for p in store.folder.iterdir()) == ["00000001-step-1", LATEST, "LOCK", "notes.txt", "results"]


# Keeping


def test_the_last_ones_stay(opened) -> None:
    store = opened(last=2)
    for step in range(1, 6):
        save(store, step)
    assert steps(store) == [4, 5]


def test_the_best_ones_stay(opened) -> None:
    store = opened(last=1, best=2, metric="loss")
    for step, loss in enumerate([0.5, 0.1, 0.9, 0.2, 0.7, 0.8], 1):
        save(store, step, loss=loss)
    assert steps(store) == [2, 4, 6]


def test_best_by_maximum_and_what_has_no_metric(opened) -> None:
    store = opened(last=1, best=1, metric="accuracy", mode="max")
    for step, accuracy in enumerate([0.5, 0.9, 0.7], 1):
        save(store, step, accuracy=accuracy)
    save(store, 4)
    save(store, 5)
    assert steps(store) == [2, 5]


def test_every_nth_stays(opened) -> None:
    store = opened(last=1, every_steps=10)
    for step in range(5, 45, 5):
        save(store, step)
    assert steps(store) == [10, 20, 30, 40]


@pytest.mark.parametrize("keep", [{"last": 0}, {"best": 1}, {"metric": "x"}, {"every_steps": 0}])
def test_impossible_wishes_are_refused(keep) -> None:
    with pytest.raises(SettingsError):
        Keep(**keep)


# Trouble


def test_a_second_job_is_refused_and_the_first_goes_on(opened, tmp_path: Path) -> None:
    store = opened()
    save(store, 1)
    code = (
        "import sys; from pathlib import Path; from farandole.checkpoint.store import Store; "
        "from farandole.checkpoint.keeping import Keep; Store(Path(sys.argv[1]), Keep(), print)"
    )
    run = subprocess.run([sys.executable, "-c", code, store.folder], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert f"another job (host {os.uname().nodename}, pid {os.getpid()}) writes checkpoints to {store.folder}" in run.stderr
    save(store, 2)
    assert newest_step(opened()) == 2


def test_a_child_does_not_hold_the_lock_of_a_parent_that_was_killed(tmp_path: Path, said) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.store import Store
store = Store(Path(sys.argv[1]), Keep(), print)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(30)
    os._exit(0)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.Popen([sys.executable, "-c", code, tmp_path / "run"], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    child = int(run.stdout.readline())
    try:
        assert run.wait(30) == -9
        Store(tmp_path / "run", Keep(), said.append).close()
    finally:
        os.kill(child, 9)
        run.stdout.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path, said) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written to: Not a directory"):
        Store(tmp_path / "file" / "run", Keep(), said.append)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True, timeout=30)


def test_a_full_disk_costs_only_the_checkpoint_that_has_no_room(small_disk: Path, said) -> None:
    store = Store(small_disk / "run", Keep(), said.append)
    try:
        save(store, 1)
        with pytest.raises(CheckpointError, match=r"No space left on device. It needs 12,000,000 bytes, [\d,]+ are free"):
            store.write(manifest(2), {}, {"w": np.ones(3_000_000, np.float32)})
        assert [entry.path.name for entry in entries(store.folder)] == ["00000001-step-1"]
        save(store, 3)
        assert newest_step(store) == 3
    finally:
        store.close()


# Killed at every point of a save

KILLS = """
import os, shutil, signal, sys
from pathlib import Path
import numpy as np
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store

folder = Path(sys.argv[1])

def save(store, step):
    manifest = Manifest(step=step, epoch=0, ranks=1, saved_at=0.0, train_s=0.0, energy_j=None, version="test")
    store.write(manifest, {"parts": {}, "step": step}, {"w": np.full(1_200_000, step, np.float32)})

def dying_at(count):
    calls = [0]
    def counted(function):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call
    for name in ("open", "pwrite", "ftruncate", "fsync", "close", "mkdir", "rename", "replace", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))

for count in range(1, 500):
    shutil.rmtree(folder, ignore_errors=True)
    pid = os.fork()
    if pid == 0:
        store = Store(folder, Keep(last=1), print)
        save(store, 1)
        dying_at(count)
        save(store, 2)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    store = Store(folder, Keep(last=1), print)
    found = store.newest()
    assert found is not None and (found.arrays["w"] == found.state["step"]).all(), count
    print(found.state["step"], flush=True)
    save(store, 3)
    assert store.newest().state["step"] == 3
    store.close()
    assert sorted(p.name for p in folder.iterdir())[1:] == ["LATEST", "LOCK"], list(folder.iterdir())
    if status == 0:
        break
"""


def test_a_kill_at_any_point_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLS, tmp_path / "run"], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stderr) == (0, "")
    found = [int(line) for line in run.stdout.split()]
    assert found == sorted(found), "once the new one is there it stays"
    assert found.count(1) > 10
    assert found.count(2) > 5


def test_everything_is_on_the_disk_before_it_gets_its_name(opened, monkeypatch) -> None:
    """A kill is not a power cut: that one is survived by this order only."""
    store = opened()
    called: list[str] = []

    def noted(name: str) -> None:
        function = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            opened = isinstance(args[0], int)
            where = Path(f"/proc/self/fd/{args[0]}").readlink() if opened else Path(str(args[0]))
            called.append(f"{name} {where.relative_to(store.folder.parent)}")
            return function(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "rename", "replace"):
        noted(name)
    save(store, 7)
    part = "run/unfinished-00000001-step-7"
    assert called == [
        f"fsync {part}/{STATE}",
        f"fsync {part}/{ARRAYS}",
        f"fsync {part}/{MANIFEST}",
        f"fsync {part}",
        f"rename {part}",
        "fsync run",
        "fsync run/LATEST.part",
        "replace run/LATEST.part",
        "fsync run",
    ]


def test_a_process_that_can_start_no_thread_saves(opened, monkeypatch) -> None:
    store = opened()

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    store.write(manifest(1), {"parts": {"w": {"$array": "w"}}}, {"w": np.arange(2_000_000.0)})
    monkeypatch.undo()
    assert (read(store.folder)["w"] == np.arange(2_000_000.0)).all()


def failing(error: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.parametrize("error", [errno.EACCES, errno.EINVAL])
def test_a_folder_whose_parent_cannot_be_flushed_is_written_to(tmp_path: Path, monkeypatch, error: int) -> None:
    for there in (False, True):
        with monkeypatch.context() as patched:
            patched.setattr(store_module, "sync_folder", failing(error))
            store = Store(tmp_path / "run", Keep(), print)
        assert store.folder.is_dir() and bool(store.finished()) == there
        save(store, 1)
        store.close()


def test_a_full_disk_does_not_keep_a_job_from_what_it_has(opened, monkeypatch) -> None:
    save(opened(), 1)
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    assert newest_step(opened()) == 1


def test_what_is_closed_is_not_written_to(opened) -> None:
    store = opened()
    save(store, 1)
    store.close()
    with pytest.raises(CheckpointError, match="the checkpointer was closed"):
        save(store, 2)
    assert steps(store) == [1]


def test_a_job_that_was_started_again_waits_for_the_lock_of_a_lost_host(opened, tmp_path: Path, said, monkeypatch) -> None:
    first = opened()
    monkeypatch.setattr(lock, "_PATIENCE_S", 0.1)
    with pytest.raises(CheckpointError, match="already"):
        Store(tmp_path / "run", Keep(), said.append)
    monkeypatch.setenv("FARANDOLE_RESTART", "1")
    threading.Timer(0.5, first.close).start()
    Store(tmp_path / "run", Keep(), said.append).close()
    (text,) = said
    assert "LOCK is held by another job (host" in text and "waits up to 120 s" in text
    held = opened()
    monkeypatch.setattr(lock, "_RESTART_PATIENCE_S", 0.3)
    with pytest.raises(CheckpointError, match="already"):
        Store(tmp_path / "run", Keep(), said.append)
    held.close()
