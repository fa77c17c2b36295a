"""Columns are scaled and filled as scikit-learn does it, in place and in little memory."""

import tracemalloc

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from farandole.data import scale as module
from farandole.data.scale import fill_gaps, scale
from farandole.errors import DataError, SettingsError

SCALERS = {"maxabs": MaxAbsScaler, "minmax": MinMaxScaler, "std": StandardScaler}


def expression(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Heavy-tailed, mostly of one sign, each column of its own size."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3, 6, columns)
    values = (rng.lognormal(0, 1, (rows, columns)) - 0.3) * sizes
    values[:, ::7] *= -1
    values[rng.random((rows, columns)) < 0.2] = 0
    return values.astype(np.float32)


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    """Statistics must not depend on where blocks of rows end."""
    if request.param == "many blocks":
        monkeypatch.setattr(module, "BLOCK_BYTES", 3 * 40 * 4)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("scaling", SCALERS)
def test_train_and_test_are_scaled_together_as_scikit_learn_does(scaling):
    train, test = expression(50, 40), expression(17, 40, seed=1)
    expected = SCALERS[scaling]().fit_transform(np.concatenate([train, test]).astype(np.float64))
    scale([train, test], scaling)
    # Two roundings to float32, of numbers up to a few units in size.
    np.testing.assert_allclose(np.concatenate([train, test]), expected, rtol=3e-7, atol=3e-7)


def test_max_abs_is_scikit_learn_bit_for_bit():
    values = expression(60, 40)
    expected = MaxAbsScaler().fit_transform(values)
    scale([values], "maxabs")
    assert np.array_equal(values, expected)


def test_min_max_stays_within_its_bounds():
    values = (np.random.default_rng(3).random((200, 300)) * 1e-3 + 7).astype(np.float32)
    scale([values], "minmax")
    assert (values.min(axis=0) == 0).all()
    assert (values.max(axis=0) == 1).all()


def test_the_mean_is_exact_where_it_dwarfs_the_deviation():
    values = (np.random.default_rng(4).normal(size=(5000, 3)) + 1e4).astype(np.float32)
    scale([values], "std")
    # float32 holds 1e4 to 1e-3, its mean over 5000 rows must not drift by as much.
    np.testing.assert_allclose(values.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(values.std(axis=0, dtype=np.float64), 1, atol=1e-6)


@pytest.mark.parametrize("scaling", SCALERS)
@pytest.mark.parametrize("constant", [0.0, 5.0, -3.0, 0.1, 1e-7, 12345.678])
def test_constant_columns_are_treated_as_scikit_learn_does(scaling, constant):
    values = np.full((30, 2), constant, np.float32)
    values[:, 1] = np.arange(30)
    expected = SCALERS[scaling]().fit_transform(values.copy())
    scale([values], scaling)
    # minmax: scikit-learn subtracts after it has multiplied, and keeps the rounding error of 12345.678.
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-3 if constant > 1e4 else 1e-6)
    assert np.isfinite(values).all()


def test_a_column_that_varies_by_rounding_errors_only_is_constant():
    values = np.full((1000, 1), 1e8)
    values[::2] = np.nextafter(1e8, 2e8)
    expected = StandardScaler().fit_transform(values)
    scale([values], "std")
    assert np.abs(values).max() < 1e-7  # not blown up to 1
    np.testing.assert_allclose(values, expected, atol=1e-7)


def test_none_changes_nothing():
    values = expression(9, 5)
    before = values.copy()
    scale([values], "none")
    assert np.array_equal(values, before)


def test_an_unknown_name_lists_the_valid_ones():
    with pytest.raises(SettingsError, match="unknown scaling 'minabs'; known: maxabs, minmax, std, none"):
        scale([expression(3, 3)], "minabs")


@pytest.mark.parametrize("scaling", [*SCALERS, "none"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_found(scaling, bad):
    train, test = expression(8, 5), expression(6, 5)
    test[3, 2] = bad
    with pytest.raises(
        DataError, match=rf"^b\.csv: data row 4, feature 3 is {bad}; expected a finite number"
    ):
        scale([train, test], scaling, sources=["a.csv", "b.csv"])


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)],
        [np.ones((2, 3), int)],
        [np.ones((0, 3), np.float32)],
        [np.ones(3, np.float32)],
    ],
)
def test_arrays_that_cannot_be_scaled_together_are_refused(arrays):
    with pytest.raises(SettingsError, match="cannot scale"):
        scale(arrays, "std")


@pytest.mark.usefixtures("blocks")
def test_gaps_become_the_mean_and_empty_columns_go():
    values = expression(50, 40)
    values[np.random.default_rng(5).random(values.shape) < 0.3] = np.nan
    empty = [0, 13, 39]
    values[:, empty] = np.nan
    expected = SimpleImputer().fit_transform(np.delete(values, empty, axis=1).astype(np.float64))
    filled = fill_gaps(values)
    assert filled.shape == (50, 37)
    np.testing.assert_allclose(filled, expected, rtol=1e-6)
    assert np.shares_memory(filled, values)


def test_a_complete_table_is_left_alone():
    values = expression(50, 40)
    before = values.copy()
    assert fill_gaps(values) is values
    assert np.array_equal(values, before)


@pytest.mark.parametrize("scaling", SCALERS)
def test_no_copy_of_the_matrix_is_made(scaling):
    values = np.random.default_rng(6).random((1500, 10_000), dtype=np.float32)  # 60 MB
    assert peak_bytes(lambda: scale([values], scaling)) < 0.2 * values.nbytes


def test_filling_makes_no_copy_either():
    values = np.random.default_rng(7).random((1500, 10_000), dtype=np.float32)
    values[:, 5] = np.nan
    assert peak_bytes(lambda: fill_gaps(values)) < 0.2 * values.nbytes


def peak_bytes(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
