"""P1B1 and P1B2: files to arrays as their specifications say, and what is wrong with a file of one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler

from farandole.errors import DataError, SettingsError
from farandole.workloads import TrainingData, find_workload

TYPES = ["skin", "breast", "lung"]
FILES = {"p1b1": ("P1B1.dev.train.csv", "P1B1.dev.test.csv"), "p1b2": ("P1B2.train.csv", "P1B2.test.csv")}
GIVEN = {"p1b1": {"model": "cvae"}, "p1b2": {}}
"""P1B1's types are an input of the conditional autoencoder alone."""
both = pytest.mark.parametrize("workload", ["p1b1", "p1b2"])


def frame(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    labels = {"case_id": [f"CASE-{seed}-{row}" for row in range(rows)], "cancer_type": TYPES * (rows // 3)}
    return pd.DataFrame(labels | {f"g{gene}": np.round(rng.lognormal(0, 1, rows), 3) for gene in range(12)})


def write(folder: Path, workload: str, train: pd.DataFrame, test: pd.DataFrame) -> None:
    for name, table in zip(FILES[workload], (train, test)):
        table.to_csv(folder / name, index=False)


def numbers(table: pd.DataFrame) -> np.ndarray:
    return table.drop(columns=["case_id", "cancer_type"]).to_numpy(np.float32)


def hot(table: pd.DataFrame) -> np.ndarray:
    return np.array(
        [[label == known for known in sorted(TYPES)] for label in table["cancer_type"]], np.float32
    )


def load(folder: Path, workload: str, train: pd.DataFrame, test: pd.DataFrame) -> TrainingData:
    write(folder, workload, train, test)
    return find_workload(workload).load(find_workload(workload).parameters(**GIVEN[workload]), folder, cache=False)


def types(samples: Any) -> np.ndarray:
    """Of each sample, one-hot."""
    return samples.inputs[1] if isinstance(samples.inputs, tuple) else samples.y


def assert_parts(data: TrainingData, frames: dict[str, pd.DataFrame], scaler: MinMaxScaler) -> None:
    for part, expected in frames.items():
        samples = getattr(data, part)
        np.testing.assert_allclose(samples.x, scaler.transform(numbers(expected)), atol=1e-6)
        assert np.array_equal(types(samples), hot(expected))
        assert samples.x.dtype == types(samples).dtype == np.float32


def fitted(train: pd.DataFrame, test: pd.DataFrame) -> MinMaxScaler:
    return MinMaxScaler().fit(np.concatenate([numbers(train), numbers(test)]).astype(np.float64))


def test_p1b1_keeps_the_order_and_validates_on_the_last_tenth(tmp_path):
    train, test = frame(60, seed=1), frame(21, seed=2)
    data = load(tmp_path, "p1b1", train, test)
    parts = {"train": train[:54], "validation": train[54:], "test": test}
    assert_parts(data, parts, fitted(train, test))
    assert data.classes == ("breast", "lung", "skin")


def test_p1b2_shuffles_and_validates_on_the_first_tenth(tmp_path):
    train, test = frame(60, seed=1), frame(21, seed=2)
    data = load(tmp_path, "p1b2", train, test)
    mixed, mixed_test = (table.sample(frac=1, random_state=2017) for table in (train, test))
    parts = {"train": mixed[6:], "validation": mixed[:6], "test": mixed_test}
    assert_parts(data, parts, fitted(train, test))
    assert data.classes == ("breast", "lung", "skin")


def test_p1b1s_target_is_its_input(tmp_path):
    write(tmp_path, "p1b1", frame(60, seed=1), frame(21, seed=2))
    known = find_workload("p1b1")
    plain, conditional = (known.load(known.parameters(model=model), tmp_path, cache=False) for model in ("ae", "cvae"))
    rows = np.arange(5)
    x, target = plain.train.batch(rows)
    (genes, kinds), same = conditional.train.batch(rows)
    assert np.array_equal(x, plain.train.x[:5])
    for array in (target, genes, same):
        assert np.array_equal(array, x)
    assert kinds.shape == (5, 3)


@both
def test_a_type_may_be_missing_from_the_test_set(tmp_path, workload):
    test = frame(21, seed=2)
    data = load(tmp_path, workload, frame(60, seed=1), test[test["cancer_type"] != "lung"])
    assert types(data.test).shape == (14, 3)
    assert types(data.test).sum(axis=0).tolist() == [7, 0, 7]


@both
def test_a_type_that_training_never_sees_is_named(tmp_path, workload):
    test = frame(21, seed=2).replace("lung", "moon")
    message = rf"{FILES[workload][1]}: cancer_type 'moon' does not occur in .*'breast', 'lung', 'skin'"
    with pytest.raises(DataError, match=message):
        load(tmp_path, workload, frame(60, seed=1), test)


@both
@pytest.mark.parametrize("column", ["case_id", "cancer_type"])
def test_a_missing_column_is_named(tmp_path, workload, column):
    with pytest.raises(DataError, match=rf"{FILES[workload][0]}.*{column}"):
        load(tmp_path, workload, frame(60, seed=1).drop(columns=column), frame(21, seed=2))


@both
def test_a_missing_label_is_named(tmp_path, workload):
    train = frame(60, seed=1)
    train.loc[7, "cancer_type"] = None
    with pytest.raises(DataError, match=rf"{FILES[workload][0]}: data row 8 has no cancer_type"):
        load(tmp_path, workload, train, frame(21, seed=2))


@both
def test_a_missing_value_is_named(tmp_path, workload):
    test = frame(21, seed=2)
    test.loc[3, "g5"] = np.nan
    with pytest.raises(DataError, match=rf"{FILES[workload][1]}.*row 4, feature 6 is nan"):
        load(tmp_path, workload, frame(60, seed=1), test)


@both
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda test: test.drop(columns="g3"), "has 11 features, .* has 12; expected the same in both"),
        (lambda test: test.rename(columns={"g3": "x"}), "feature 4 is 'x', but 'g3' in .*under other names"),
        (
            lambda test: test[["case_id", "cancer_type", "g1", "g0", *(f"g{gene}" for gene in range(2, 12))]],
            "feature 1 is 'g1', but 'g0' in .*in another order; expected the same names in the same order",
        ),
    ],
)
def test_other_features_in_the_test_file_are_named(tmp_path, workload, change, message):
    with pytest.raises(DataError, match=f"{FILES[workload][1]}.*{message}"):
        load(tmp_path, workload, frame(60, seed=1), change(frame(21, seed=2)))


@both
@pytest.mark.parametrize(
    ("settings", "message"),
    [({"scaling": "minabs"}, "scaling='minabs' is unknown. Use one of maxabs"), ({"val_split": 10.0}, "val_split=10.0: expected")],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_read(workload, settings, message):
    with pytest.raises(SettingsError, match=message):
        find_workload(workload).parameters(**settings)
