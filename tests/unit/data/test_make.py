"""Synthetic CANDLE files: layouts, determinism, and a folder that is never left half-made."""

import errno
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from farandole.data.make import make, verify, write
from farandole.errors import DataError, SettingsError
from farandole.workloads.finding import tables_of

SMALL = {"nt3": (40, 120), "p1b1": (30, 50), "p1b2": (30, 160), "p1b3": (4000, 60)}
NAMES = tuple(SMALL)


def made(name: str, folder: Path, **options: object) -> dict[str, Path]:
    rows, features = SMALL[name]
    make(tables_of(name), folder, **{"rows": rows, "features": features, **options})  # type: ignore[arg-type]
    return tables_of(name).find(folder)


@pytest.mark.parametrize("name", NAMES)
def test_files_have_the_names_and_layouts_of_the_specification(name: str, tmp_path: Path) -> None:
    paths = made(name, tmp_path)
    for role, file in tables_of(name).files.items():
        lines = paths[role].read_text().split("\n")
        assert lines.pop() == ""  # every line ends
        cells = [line.split(file.delimiter) for line in lines]
        assert {len(row) for row in cells} == {len(cells[0])}
        if file.header:
            assert tuple(cells[0][: len(file.columns)]) == file.columns
            assert len(set(cells[0])) == len(cells[0])


@pytest.mark.parametrize("name", ["nt3", "p1b1", "p1b2"])
def test_values_are_numbers_and_rows_are_as_asked(name: str, tmp_path: Path) -> None:
    rows, features = SMALL[name]
    paths = made(name, tmp_path)
    for role, count in (("train", rows), ("test", tables_of(name).size("demo", rows).test_rows)):
        file = tables_of(name).files[role]
        lines = paths[role].read_text().splitlines()[file.header :]
        assert len(lines) == count
        for line in lines:
            values = line.split(",")[len(file.columns) :]
            assert len(values) == features
            assert all(re.fullmatch(r"\d+(\.\d+)?", value) for value in values)


def test_p1b3_tables_fit_together(tmp_path: Path) -> None:
    paths = made("p1b3", tmp_path)
    table = {role: [line.split(tables_of("p1b3").files[role].delimiter) for line in path.read_text().splitlines()] for role, path in paths.items()}  # fmt: skip
    measured = table["dose_response"][1:]
    assert len(measured) == SMALL["p1b3"][0]
    assert len({(drug, cell, dose) for drug, cell, dose, _ in measured}) == len(measured)
    cells = {row[0].replace(".", ":") for row in table["expressions"][1:]}
    assert {row[1] for row in measured} <= cells
    assert {row[0] for row in table["test_celllines"][1:]} < cells
    drugs = {row[0] for row in measured}
    assert {row[0] for row in table["test_drugs"][1:]} < drugs
    described = {row[0] for row in table["descriptors"][1:]}
    assert described < drugs  # as in the real files, some drugs have no descriptors: the join drops them
    assert "na" in {value for row in table["descriptors"] for value in row}
    assert "" in {value for row in table["proteome"] for value in row}


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bytes_whatever_the_threads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farandole.data.make.sheet._BLOCK_VALUES", 500)  # many blocks, even in small files
    one, three, other = (
        make(tables_of(name), tmp_path / folder, rows=SMALL[name][0], features=SMALL[name][1], seed=seed, threads=threads)
        for folder, seed, threads in (("one", 5, 1), ("three", 5, 3), ("other", 6, 3))
    )
    assert one == three
    assert not {file.sha256 for file in one.files} & {file.sha256 for file in other.files}


def test_test_rows_are_other_samples_than_training_rows(tmp_path: Path) -> None:
    paths = made("nt3", tmp_path)
    train, test = (set(paths[role].read_text().splitlines()) for role in ("train", "test"))
    assert not train & test


@pytest.mark.parametrize(("name", "column"), [("nt3", 0), ("p1b1", 1), ("p1b2", 1)])
def test_classes_are_balanced_and_neither_order_nor_id_tells_them(name: str, column: int, tmp_path: Path) -> None:
    path = made(name, tmp_path, rows=400)["train"]
    lines = [line.split(",", 2) for line in path.read_text().splitlines()[column:]]
    labels = [line[column] for line in lines]
    counts = [labels.count(label) for label in set(labels)]
    assert max(counts) - min(counts) <= 1
    for order in (labels, [label for _, label in sorted(zip((line[0] for line in lines), labels))] if column else labels):
        repeats = sum(a == b for a, b in pairwise(order)) / len(order)
        assert abs(repeats - 1 / len(counts)) < 0.12


def test_verify_notices_a_changed_and_a_missing_file(tmp_path: Path) -> None:
    path = made("nt3", tmp_path)["test"]
    made("p1b2", tmp_path)
    assert {manifest.name for manifest in verify(tmp_path)} == {"nt3", "p1b2"}
    text = bytearray(path.read_bytes())
    text[-2] ^= 1
    path.write_bytes(text)
    with pytest.raises(DataError, match=r"nt_test2\.csv has changed"):
        verify(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"nt_test2\.csv is missing"):
        verify(tmp_path)


def test_a_complete_set_is_kept_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    path = made("nt3", tmp_path)["train"]
    text, stamp = path.read_bytes(), path.stat().st_mtime_ns
    made("nt3", tmp_path)
    assert path.stat().st_mtime_ns == stamp
    path.unlink()
    made("nt3", tmp_path)
    assert path.read_bytes() == text


def test_other_files_are_refused_unless_forced(tmp_path: Path) -> None:
    first = made("nt3", tmp_path)["train"].read_bytes()
    with pytest.raises(SettingsError, match=r"already holds nt3.*seed 0.*--force"):
        made("nt3", tmp_path, seed=1)
    assert tables_of("nt3").find(tmp_path)["train"].read_bytes() == first
    assert made("nt3", tmp_path, seed=1, force=True)["train"].read_bytes() != first
    verify(tmp_path)


def test_real_files_are_never_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "nt_train2.csv").write_text("1,0.5\n")
    with pytest.raises(SettingsError, match=r"nt_train2\.csv, not made here.*--force"):
        made("nt3", tmp_path)
    assert (tmp_path / "nt_train2.csv").read_text() == "1,0.5\n"


@pytest.mark.parametrize("stop", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
@pytest.mark.parametrize("before", ["nothing", "a set"])
def test_a_full_disk_or_ctrl_c_leaves_what_was_there(
    stop: BaseException, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before == "a set":
        made("nt3", tmp_path, seed=1)
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    synced = os.fsync

    def fail_at_the_second_file(descriptor: int) -> None:
        if "nt_test2" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise stop
        synced(descriptor)

    monkeypatch.setattr(write.os, "fsync", fail_at_the_second_file)
    with pytest.raises((DataError, KeyboardInterrupt)) as caught:
        made("nt3", tmp_path, force=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == there
    assert isinstance(stop, KeyboardInterrupt) or "is full" in str(caught.value)


def test_what_a_killed_run_left_is_swept(tmp_path: Path) -> None:
    stale = tmp_path / f".nt_train2.csv.{write.socket.gethostname()}.999999999.abcd.partial"
    stale.write_text("1,0.")
    made("nt3", tmp_path)
    assert not stale.exists()


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    free = write.shutil.disk_usage(tmp_path).free
    with pytest.raises(DataError, match="MB free, the files need about"):
        make(tables_of("nt3"), tmp_path, rows=free // 60_000, features=60_000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows": 0}, "rows=0 is too few for nt3.*--rows 16"),
        ({"features": -1}, "features=-1 is too few.*--features 60"),
        ({"seed": -1}, "seed=-1 is not between.*--seed 1"),
        ({"preset": "huge"}, "preset='huge' is unknown. Use one of demo, test, paper"),
    ],
)
def test_wrong_settings_say_what_to_type(options: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=said):
        make(tables_of("nt3"), tmp_path / "new", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_missing_files_name_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"P1B1\.dev\.train\.csv.*farandole data make p1b1 --out.*copy the real"):
        tables_of("p1b1").find(tmp_path)


def test_a_damaged_manifest_is_an_error_not_a_guess(tmp_path: Path) -> None:
    made("nt3", tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json is not a manifest"):
        made("nt3", tmp_path)


def test_without_numba_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from farandole.data.make import text

    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(text._write_rows, "_compiled", None)
    with pytest.raises(SettingsError, match=r"pip install 'farandole\[data\]'"):
        made("p1b3", tmp_path)
    assert not list(tmp_path.iterdir())
