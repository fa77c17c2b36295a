"""`farandole data cache`: what is kept, and away with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from farandole.data.cache import FOLDER, CacheFile, Stored
from farandole.data.layout import ReadOptions


def farandole(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=cwd, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with the tables of two files, one of which has changed since, and somebody's own file."""
    import numpy as np

    for name in ("fresh.csv", "changed.csv"):
        (tmp_path / name).write_text("1,2\n")
        place = CacheFile(tmp_path / name, ReadOptions(), None)
        place.store(Stored(np.ones((1, 2), np.float32), None, []))
        assert place.load() is not None
    (tmp_path / "changed.csv").write_text("1,2\n3,4\n")
    (tmp_path / "counts.matrix").write_text("mine")
    return tmp_path


def kept(data: Path) -> list[str]:
    return sorted(path.name.split(".")[0] for path in (data / FOLDER).iterdir())


def test_ls(data: Path) -> None:
    for told in (farandole("data", "cache", "ls", str(data)), farandole("data", "cache", "ls", cwd=data)):
        assert told.returncode == 0, told.stderr
        changed, fresh, total = told.stdout.splitlines()
        assert "stale" in changed and f"of {data / 'changed.csv'}" in changed
        assert "current" in fresh and f"of {data / 'fresh.csv'}" in fresh
        assert total.endswith("in 2 files")
    assert kept(data) == ["changed", "fresh"]


def test_clear(data: Path) -> None:
    told = farandole("data", "cache", "clear", str(data), "--stale")
    assert told.stdout.startswith("removed 1 file"), told.stderr
    assert kept(data) == ["fresh"]
    told = farandole("data", "cache", "clear", cwd=data)
    assert told.stdout.startswith("removed 1 file"), told.stderr
    assert kept(data) == []
    assert farandole("data", "cache", "clear", str(data)).stdout.startswith("removed 0 files, 0 bytes")
    assert sorted(path.name for path in data.iterdir()) == [FOLDER, "changed.csv", "counts.matrix", "fresh.csv"]


@pytest.mark.parametrize("verb", ["ls", "clear"])
def test_no_such_folder(verb: str, tmp_path: Path) -> None:
    told = farandole("data", "cache", verb, str(tmp_path / "none"))
    assert told.returncode != 0
    assert told.stderr.startswith("farandole: ") and "no such folder" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_help() -> None:
    told = farandole("data", "cache", "clear", "--help")
    assert told.returncode == 0
    assert "--stale" in told.stdout
