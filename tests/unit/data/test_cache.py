"""A parsed table is kept, found again, and never trusted where anything about it is wrong."""

import errno
import os
import random
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from farandole.data import Matrix, read_matrix
from farandole.data.cache import FOLDER, CacheFile, Stored, clear, entries
from farandole.data.layout import ReadOptions
from farandole.errors import DataError, SettingsError

TABLE = 'id,name,a,b\n1,x,0.5,7\n2,"é,",-1.5,nan\n3,,2.5,9\n'
COLUMNS = ("id", "name")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def read(source: Path, **options) -> Matrix:
    """With the cache file written, and no word of warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read_matrix(source, **{"columns": COLUMNS, **options})
        finish_writing()
    return table


def finish_writing() -> None:
    for thread in threading.enumerate():
        if thread.name == "farandole-data-cache":
            thread.join()


def cache_files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def is_mapped(table: Matrix, file: Path) -> bool:
    address = table.values.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(word, 16) for word in line.split()[0].split("-"))
        if start <= address < stop:
            return line.endswith(str(file))
    return False


def assert_is_the_table(table: Matrix) -> None:
    assert np.array_equal(table.values, np.array([[0.5, 7], [-1.5, np.nan], [2.5, 9]], np.float32), equal_nan=True)
    assert table.values.flags.c_contiguous and table.values.flags.writeable
    assert table.names == ("a", "b")
    assert table.columns["id"].tolist() == [1, 2, 3] and table.columns["id"].dtype == np.int64
    assert table.columns["name"].tolist() == ["x", "é,", ""]


# Kept and found again


def test_the_second_read_is_mapped_and_the_same(source: Path) -> None:
    first = read(source)
    (file,) = cache_files(source.parent / FOLDER)
    written = file.stat()
    second = read(source)
    assert_is_the_table(first)
    assert_is_the_table(second)
    assert is_mapped(second, file) and not is_mapped(first, file)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert cache_files(source.parent / FOLDER) == [file]


def test_a_folder_of_ones_own(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    read(source, cache=folder)
    (file,) = cache_files(folder)
    assert is_mapped(read(source, cache=str(folder)), file)
    assert not (source.parent / FOLDER).exists()


def test_no_cache_where_none_is_wanted(source: Path) -> None:
    assert_is_the_table(read(source, cache=False))
    assert cache_files(source.parent) == [source]


def test_what_is_changed_in_a_table_stays_there(source: Path) -> None:
    for _ in range(3):
        table = read(source)
        assert_is_the_table(table)
        table.values[:] = 77
        table.columns["id"][:] = 77
    (file,) = cache_files(source.parent / FOLDER)
    assert source.read_text() == TABLE
    assert np.float32(77).tobytes() not in file.read_bytes()


def test_a_table_may_be_changed_while_it_is_written(source: Path, monkeypatch) -> None:
    go_on = threading.Event()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (go_on.wait(10), fsync(handle)))
    table = read_matrix(source, columns=COLUMNS)
    table.values[:] = 77
    go_on.set()
    assert_is_the_table(read(source))


def test_a_read_after_clear_keeps_its_numbers(source: Path) -> None:
    read(source)
    table = read(source)
    clear(source.parent)
    assert_is_the_table(table)


def test_many_names_and_much_text(tmp_path: Path) -> None:
    source = tmp_path / "a name with spaces, [brackets]* and ümlauts.csv"
    names = [f'gene "{i}" é' for i in range(3000)]
    row = ",".join(str(i) for i in range(3000))
    source.write_text(",".join('"' + name.replace('"', '""') + '"' for name in names) + f"\n{row}\n")
    for _ in range(2):
        table = read(source, columns=[names[7]])
        assert table.names == tuple(names[:7] + names[8:])
        assert table.columns == {names[7]: [7]}
    assert len(cache_files(tmp_path / FOLDER)) == 1


def test_tables_of_several_blocks(tmp_path: Path) -> None:
    """Checksums are kept for pieces of 8 MiB."""
    values = np.arange(5_000_000, dtype=np.float32).reshape(1000, 5000)
    (tmp_path / "s").write_text("")
    place = CacheFile(tmp_path / "s", ReadOptions(), None)
    place.store(Stored(values, None, []))
    loaded = place.load()
    assert loaded is not None and np.array_equal(loaded.values, values)
    with place.path.open("r+b") as file:
        file.seek(4096 + values.nbytes - 3)
        file.write(b"!")
    with pytest.warns(UserWarning, match="damaged"):
        assert place.load() is None


# Made anew


def changed_content(source: Path) -> None:
    source.write_text(TABLE.replace("0.5", "0.7"))  # of the same length


def another_length(source: Path) -> None:
    source.write_text(TABLE + "4,z,1,1\n")


def another_time(source: Path) -> None:
    os.utime(source, ns=(0, source.stat().st_mtime_ns + 1))


def another_file(source: Path) -> None:
    told = source.stat()
    other = source.with_name("other")
    other.write_text(TABLE.replace("0.5", "0.7"))
    os.utime(other, ns=(told.st_atime_ns, told.st_mtime_ns))
    other.rename(source)


@pytest.mark.parametrize("change", [changed_content, another_length, another_time, another_file])
def test_a_changed_file_is_read_anew(change, source: Path) -> None:
    read(source)
    (file,) = cache_files(source.parent / FOLDER)
    change(source)
    fresh = read(source, cache=False)
    after = read(source)
    assert np.array_equal(after.values, fresh.values, equal_nan=True)
    assert not is_mapped(after, file)
    again = read(source)
    assert np.array_equal(again.values, fresh.values, equal_nan=True)
    assert is_mapped(again, file)
    assert cache_files(source.parent / FOLDER) == [file]


def test_a_file_written_twice_at_once_is_read_twice(source: Path) -> None:
    """Times of files advance in steps: two versions of one length could have the same."""
    for i in range(20):
        source.write_text(f"id,name,a,b\n1,x,{i:02d},7\n")
        assert read_matrix(source, columns=COLUMNS).values[0, 0] == i
    finish_writing()


@pytest.mark.parametrize(
    "options", [{"dtype": "float64"}, {"columns": ("name", "id")}, {"columns": ("name", 0)}, {"na": ("7", "nan")}, {"header": True}]
)
def test_every_way_of_reading_has_its_own(options: dict, source: Path) -> None:
    read(source)
    for _ in range(2):
        found, fresh = read(source, **options), read(source, cache=False, **options)
        assert found.values.dtype == fresh.values.dtype
        assert np.array_equal(found.values, fresh.values, equal_nan=True)
        assert [(key, column.tolist()) for key, column in found.columns.items()] == [
            (key, column.tolist()) for key, column in fresh.columns.items()
        ]
    assert len(cache_files(source.parent / FOLDER)) == 2
    assert_is_the_table(read(source))


def test_two_files_of_one_name_share_a_folder(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "t.csv").write_text(f"{number},{number}\n")
    for _ in range(2):
        for number, name in enumerate(("a", "b")):
            values = read(tmp_path / name / "t.csv", columns=(), cache=tmp_path / "cache").values
            assert values.tolist() == [[number, number]]


# Damaged


def kept(source: Path) -> CacheFile:
    read(source)
    return CacheFile(source, ReadOptions(columns=COLUMNS), None)


def assert_right_or_nothing(place: CacheFile) -> bool:
    """Whether there is a table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = place.load()
    if table is not None:
        assert_is_the_table(Matrix(table.values, table.names, dict(zip(COLUMNS, table.columns))))
    return table is not None


def test_a_cut_off_file_is_not_used(source: Path) -> None:
    place = kept(source)
    whole = place.path.read_bytes()
    for cut in {*range(0, len(whole), 61), *range(len(whole) - 60, len(whole))}:
        place.path.write_bytes(whole[:cut])
        assert not assert_right_or_nothing(place), cut
    for start in range(0, len(whole) - 3000, 701):  # a hole in the middle
        for size in (512, min(9000, len(whole) - 3000 - start)):
            place.path.write_bytes(whole[:start] + whole[start + size :])
            assert_right_or_nothing(place)
            place.path.write_bytes(whole[:start] + bytes(size) + whole[start + size :])
            assert_right_or_nothing(place)
    for more in (b"\0", whole[-40:], whole):
        place.path.write_bytes(whole + more)
        assert_right_or_nothing(place)
    place.path.write_bytes(whole)
    assert assert_right_or_nothing(place)


def test_a_changed_bit_gives_no_wrong_number(source: Path) -> None:
    place = kept(source)
    whole = place.path.read_bytes()
    used = [*range(30), *range(4096, 4096 + 24), *range(8192, 8192 + 24), *range(3 * 4096, 3 * 4096 + 30), *range(4 * 4096, len(whole))]
    rng = random.Random(0)
    refused = 0
    for at in used + rng.choices(range(len(whole)), k=200):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        place.path.write_bytes(damaged)
        refused += not assert_right_or_nothing(place)
    assert refused >= len(used) - 30  # a few bytes of the pages are used by nothing


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"farandole matrix 1\n", b"farandole matrix 0\n" * 1000, bytes(20_000), random.Random(0).randbytes(20_000)],
    ids=["nothing", "a letter", "only a mark", "another version", "zeros", "noise"],
)
def test_a_foreign_file_in_its_place_is_replaced(content: bytes, source: Path) -> None:
    place = kept(source)
    place.path.write_bytes(content)
    with pytest.warns(UserWarning, match="made anew"):
        assert_is_the_table(read_matrix(source, columns=COLUMNS))
    assert is_mapped(read(source), place.path)


def test_a_folder_in_its_place(source: Path) -> None:
    place = kept(source)
    place.path.unlink()
    place.path.mkdir()
    for _ in range(2):
        with pytest.warns(UserWarning, match="cache=DIR"):
            assert_is_the_table(read_matrix(source, columns=COLUMNS))
            finish_writing()
    assert cache_files(place.folder) == [place.path]
    assert [entry.state for entry in entries(source.parent)] == ["cannot be read: Is a directory"]


# Where nothing can be kept


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, timeout=10, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        yield folder
    finally:
        finish_writing()
        subprocess.run(["umount", "-l", folder], timeout=10, check=True)


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    source = tmp_path / "large.csv"
    source.write_text("1,2,3,4\n" * 50_000)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"No space left on device \(the disk is full\)"):
            assert read_matrix(source, cache=small_disk).values.shape == (50_000, 4)
            finish_writing()
        assert cache_files(small_disk) == []


def test_a_disk_that_is_full_when_the_file_is_made_safe(source: Path, monkeypatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.warns(UserWarning, match="could not be finished: No space left on device"):
        assert_is_the_table(read_matrix(source, columns=COLUMNS))
        finish_writing()
    assert cache_files(source.parent / FOLDER) == []


def test_a_folder_that_cannot_be_written(small_disk: Path) -> None:
    source = small_disk / "table.csv"
    source.write_text(TABLE)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], timeout=10, check=True)
    with pytest.warns(UserWarning, match="cannot be written: Read-only file system"):
        assert_is_the_table(read_matrix(source, columns=COLUMNS))


def test_a_cache_on_a_disk_that_may_only_be_read_is_used(small_disk: Path) -> None:
    source = small_disk / "table.csv"
    source.write_text(TABLE)
    read(source)
    (file,) = cache_files(small_disk / FOLDER)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], timeout=10, check=True)
    table = read(source)
    assert_is_the_table(table)
    assert is_mapped(table, file)
    with pytest.raises(DataError, match="cannot be removed: Read-only file system"):
        clear(small_disk)
    del table


def test_folders_that_are_none(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "none" / "below"):
        with pytest.warns(UserWarning, match="cannot be written"):
            assert_is_the_table(read_matrix(source, columns=COLUMNS, cache=folder))
    (source.parent / FOLDER).write_text("")
    with pytest.warns(UserWarning, match="cannot be written"):
        assert_is_the_table(read_matrix(source, columns=COLUMNS))


def test_a_name_too_long_for_a_cache_beside_it(tmp_path: Path) -> None:
    source = tmp_path / ("n" * 250 + ".csv")
    source.write_text(TABLE)
    with pytest.warns(UserWarning, match="File name too long"):
        assert_is_the_table(read_matrix(source, columns=COLUMNS))


def test_what_cannot_be_parsed_is_not_kept(source: Path) -> None:
    source.write_text(TABLE + "4,z,1\n")
    with pytest.raises(DataError, match="line 5"):
        read_matrix(source, columns=COLUMNS)
    assert cache_files(source.parent / FOLDER) == []


# What there is, and away with it


def test_entries_and_clear(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    shutil.copy(source, other)
    gone = tmp_path / "gone.csv"
    shutil.copy(source, gone)
    for path in (source, other, gone):
        read(path)
    gone.unlink()
    another_length(other)
    (tmp_path / FOLDER / f"x.{'0' * 16}.matrix").write_text("not one of ours")
    for folder in (tmp_path, tmp_path / FOLDER):
        found = {entry.path.name.split(".")[0]: entry for entry in entries(folder)}
        assert {name: entry.state for name, entry in found.items()} == {
            "table": "current", "other": "stale", "gone": "stale", "x": "not a table of this version of farandole",
        }  # fmt: skip
        assert found["table"].source == str(source)
        assert found["table"].nbytes == found["table"].path.stat().st_size
    assert {entry.path.name.split(".")[0] for entry in clear(tmp_path, everything=False)} == {"other", "gone", "x"}
    assert is_mapped(read(source), found["table"].path)
    assert [entry.source for entry in clear(tmp_path)] == [str(source)]
    assert entries(tmp_path) == [] and clear(tmp_path) == []


def test_files_of_others_are_neither_listed_nor_removed(tmp_path: Path) -> None:
    """Programs of the field write counts.matrix."""
    for name in ("counts.matrix", "genes.counts.matrix", ".hidden.matrix.1.part", "a.0123.matrix"):
        (tmp_path / name).write_text("mine")
    assert entries(tmp_path) == [] and clear(tmp_path) == []
    assert len(cache_files(tmp_path)) == 4


def test_entries_of_what_is_no_folder(source: Path) -> None:
    for path in (source, source.parent / "none"):
        with pytest.raises(SettingsError, match="no such folder"):
            entries(path)
