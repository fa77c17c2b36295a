"""Only a job's own, abandoned shared memory is removed."""

import mmap
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.launch.segments import mapped_segments, remove_abandoned


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/mpich_shm_{uuid.uuid4().hex}_0")
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield path
    path.unlink(missing_ok=True)


def test_an_abandoned_segment_goes(segment: Path) -> None:
    assert remove_abandoned([str(segment)]) == [str(segment)]
    assert not segment.exists()


def test_a_segment_in_use_is_seen_and_stays(segment: Path) -> None:
    with segment.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        assert str(segment) in mapped_segments([os.getpid()])
        assert remove_abandoned([str(segment)]) == []
    assert segment.exists()


def test_files_of_unknown_make_stay(tmp_path: Path) -> None:
    mine = Path(f"/dev/shm/dataset-{uuid.uuid4().hex}")
    elsewhere = tmp_path / "mpich_shm_0_0"
    for path in (mine, elsewhere):
        path.write_bytes(b"data")
    try:
        assert (
            remove_abandoned(
                [str(mine), str(elsewhere), "/dev/shm/mpich_shm_0/../x", "/dev/shm/mpich_shm_gone"]
            )
            == []
        )
        assert mine.exists()
        assert elsewhere.exists()
    finally:
        mine.unlink()
