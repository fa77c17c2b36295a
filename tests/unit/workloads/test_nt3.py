"""NT3: files to arrays as its specification says, and what is wrong with a file of one's own."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.preprocessing import MaxAbsScaler

from farandole.errors import DataError, SettingsError
from farandole.workloads.nt3 import NT3
from farandole.workloads.nt3.data import load

GENES = 30


def table(rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    genes = np.round(rng.lognormal(2, 2, (rows, GENES)), 4)
    return np.column_stack([rng.permutation(rows) % 2, genes])


def write(path: Path, rows: np.ndarray) -> None:
    path.write_text("".join(f"{int(row[0])},{','.join(map(repr, row[1:].tolist()))}\n" for row in rows))


@pytest.fixture
def tables(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    train, test = table(20, seed=1), table(8, seed=2)
    write(tmp_path / "nt_train2.csv", train)
    write(tmp_path / "nt_test2.csv", test)
    return train, test


def test_the_files_become_what_the_network_takes(tmp_path, tables):
    data = load(NT3(), tmp_path, cache=False)
    train, test = tables
    assert data.train.x.shape == (20, GENES, 1)
    assert data.train.x.dtype == data.train.y.dtype == np.float32
    assert data.train.x.flags.c_contiguous
    expected = MaxAbsScaler().fit_transform(np.concatenate([train, test])[:, 1:].astype(np.float32))
    assert np.array_equal(np.concatenate([data.train.x, data.test.x])[:, :, 0], expected)
    assert np.array_equal(data.train.y, np.eye(2)[train[:, 0].astype(int)])
    assert np.array_equal(data.test.y, np.eye(2)[test[:, 0].astype(int)])
    assert data.classes == ("normal", "tumor")


@pytest.mark.usefixtures("tables")
def test_some_genes(tmp_path):
    whole, some = load(NT3(), tmp_path, cache=False), load(NT3(feature_subsample=7), tmp_path, cache=False)
    assert some.train.x.shape == (20, 7, 1) and some.test.x.shape == (8, 7, 1)
    columns = [{part.x[:, gene].tobytes() for gene in range(part.x.shape[1])} for part in (some.train, whole.train)]
    assert len(columns[0]) == 7 and columns[0] < columns[1]
    assert some.train.x.base is None or some.train.x.base.nbytes == some.train.x.nbytes, "the others take no memory"
    with pytest.raises(SettingsError, match=f"feature_subsample=31: the files have {GENES} features"):
        load(NT3(feature_subsample=31), tmp_path, cache=False)


@pytest.mark.usefixtures("tables")
def test_validation_is_the_test_set_and_no_copy_of_it(tmp_path):
    data = load(NT3(), tmp_path, cache=False)
    assert data.validation is data.test


def test_validation_out_of_the_training_file(tmp_path, tables):
    data, whole = load(NT3(val_split=0.25), tmp_path, cache=False), load(NT3(), tmp_path, cache=False)
    assert (len(data.train), len(data.validation), len(data.test)) == (15, 5, 8)
    assert np.array_equal(np.concatenate([data.train.x, data.validation.x]), whole.train.x)
    assert np.array_equal(np.concatenate([data.train.y, data.validation.y]), whole.train.y)
    assert np.array_equal(data.test.x, whole.test.x)


@pytest.mark.usefixtures("tables")
def test_scaling_in_place_leaves_the_cache_alone(tmp_path):
    fresh, first, second, third = (
        load(NT3(), tmp_path, cache=kept) for kept in (False, *[tmp_path / "cache"] * 3)
    )
    for data in (first, second, third):
        assert np.array_equal(data.train.x, fresh.train.x)


def test_unscaled_values_are_those_of_the_file(tmp_path, tables):
    data = load(NT3(scaling="none"), tmp_path, cache=False)
    assert np.array_equal(data.train.x[:, :, 0], tables[0][:, 1:].astype(np.float32))


@pytest.mark.usefixtures("tables")
def test_a_label_that_is_none_is_named(tmp_path):
    wrong = table(8, seed=2)
    wrong[5, 0] = 2
    write(tmp_path / "nt_test2.csv", wrong)
    message = r"nt_test2\.csv: data row 6 begins with 2.*; expected a label in column 1: 0 \(normal\) or 1 \(tumor\)"
    with pytest.raises(DataError, match=message):
        load(NT3(), tmp_path, cache=False)


@pytest.mark.usefixtures("tables")
def test_a_file_without_labels_is_named(tmp_path):
    np.savetxt(tmp_path / "nt_train2.csv", table(8, seed=3)[:, 1:], fmt="%.4f", delimiter=",")
    with pytest.raises(DataError, match=r"nt_train2\.csv: data row 1 begins with .*expected a label"):
        load(NT3(), tmp_path, cache=False)


@pytest.mark.usefixtures("tables")
def test_files_of_different_genes_are_named(tmp_path):
    write(tmp_path / "nt_test2.csv", table(8, seed=2)[:, :-3])
    with pytest.raises(
        DataError, match=r"nt_test2\.csv has 27 genes .*nt_train2\.csv has 30; expected the same"
    ):
        load(NT3(), tmp_path, cache=False)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nt_train2\.csv"):
        load(NT3(), tmp_path)


def test_a_scaling_that_does_not_exist_is_refused_before_anything_is_read():
    with pytest.raises(SettingsError, match=r"scaling='minabs' is unknown\. Use one of maxabs"):
        NT3(scaling="minabs")
