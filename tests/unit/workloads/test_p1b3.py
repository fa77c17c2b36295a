"""P1B3: what its batches hold equals the merge of its tables, and what is wrong with a file of one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from farandole.errors import DataError, SettingsError
from farandole.train.plan import Plan
from farandole.train.preparing import make_missing_data
from farandole.train.rank.batches import TrainingBatches
from farandole.train.settings import RunSettings
from farandole.workloads import TrainingData
from farandole.workloads.p1b3 import P1B3, data
from farandole.workloads.p1b3.data import P1B3Data, load

CELLS = [f"BR.CELL-{number}" for number in range(14)]
DRUGS = list(range(100, 160))
WIDTHS = {"expressions": 30, "mirna": 6, "proteome": 8, "kinome": 3}
UNSCALED = P1B3(scaling="none")


def numbers(rng: np.random.Generator, rows: int, prefix: str, columns: int) -> dict[str, np.ndarray]:
    return {f"{prefix}{column}": np.round(rng.normal(size=rows), 4) for column in range(columns)}


def response(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "NSC": rng.choice([*DRUGS, 7, 9], rows),
            "CELLNAME": rng.choice([*(cell.replace(".", ":") for cell in CELLS), "XX:UNKNOWN"], rows),
            "LOG_CONCENTRATION": rng.choice([-8.0, -5.0, -4.5, -4.0, -3.5], rows),
            "GROWTH": np.round(rng.uniform(-100, 150, rows), 2),
        }
    )


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    tables = {
        assay: pd.DataFrame({"CellLine": rng.permutation(CELLS)} | numbers(rng, len(CELLS), assay[0], width))
        for assay, width in WIDTHS.items()
    }
    tables["mirna"] = tables["mirna"][2:]  # not every cell line has been measured in every way
    tables["kinome"] = tables["kinome"][:-1]
    tables["dose_response"] = response(rng, 6000)
    tables["descriptors"] = pd.DataFrame({"NAME": rng.permutation(DRUGS)} | numbers(rng, len(DRUGS), "d", 9))
    tables["latent"] = pd.DataFrame(
        {"NSC": rng.permutation(DRUGS)[5:]} | numbers(rng, len(DRUGS) - 5, "l", 4)
    )
    tables["test_celllines"] = pd.DataFrame({"CELLNAME": ["BR:CELL-3", "BR:CELL-8"]})
    tables["test_drugs"] = pd.DataFrame({"NSC": DRUGS[::6]})
    return tables


NAMES = {
    "dose_response": "P1B3_dose_response.csv",
    "descriptors": "P1B3_drug_descriptors.tsv",
    "latent": "P1B3_drug_latent.csv",
    "test_celllines": "P1B3_test_celllines.txt",
    "test_drugs": "P1B3_test_drugs.txt",
    **{assay: f"P1B3_cellline_{assay}.tsv" for assay in WIDTHS},
}


def write(folder: Path, frames: dict[str, pd.DataFrame]) -> None:
    for role, table in frames.items():
        name = NAMES[role]
        table.to_csv(folder / name, sep="\t" if name.endswith(".tsv") else ",", index=False, na_rep="na")


@pytest.fixture
def folder(tmp_path: Path, frames: dict[str, pd.DataFrame]) -> Path:
    write(tmp_path, frames)
    return tmp_path


def merged(
    frames: dict[str, pd.DataFrame],
    *,
    assays: tuple[str, ...] = ("expressions",),
    drugs: tuple[str, ...] = ("descriptors",),
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Train, validation and test rows [NSC, CELLNAME, GROWTH, x...], the way pandas would do it."""
    rows = frames["dose_response"][["NSC", "CELLNAME", "GROWTH", "LOG_CONCENTRATION"]]
    rows = rows[rows["LOG_CONCENTRATION"].between(-5, -4)]
    growth = rows["GROWTH"]
    thinned = [
        rows[(growth > 0) & (growth < 50)].sample(frac=0.7, random_state=2017),
        rows[growth.between(50, 100)].sample(frac=0.18, random_state=2017),
        rows[growth > 100].sample(frac=0.01, random_state=2017),
    ]
    rows = pd.concat([rows[growth <= 0], *thinned])
    for assay in assays:
        cells = frames[assay].rename(columns={"CellLine": "CELLNAME"})
        rows = rows.merge(cells.assign(CELLNAME=cells["CELLNAME"].str.replace(".", ":")), on="CELLNAME")
    for role in drugs:
        rows = rows.merge(frames[role].rename(columns={"NAME": "NSC"}), on="NSC")
    unseen_cell = rows["CELLNAME"].isin(frames["test_celllines"]["CELLNAME"])
    unseen_drug = rows["NSC"].isin(frames["test_drugs"]["NSC"])
    train = rows[~unseen_cell & ~unseen_drug].sample(frac=1, random_state=2017)
    test = rows[unseen_cell & unseen_drug].sample(frac=1, random_state=2017)
    kept = len(train) - int(len(train) * 0.1)
    return train[:kept], train[kept:], test


def tables(found: TrainingData) -> P1B3Data:
    """What samples are made of."""
    return found.train.data  # type: ignore[union-attr]


def every(samples: Any) -> tuple[np.ndarray, np.ndarray]:
    """x and y of all samples."""
    return samples.batch(np.arange(len(samples)))


def assert_same_samples(found: TrainingData, parts: tuple[pd.DataFrame, ...]) -> None:
    for samples, expected in zip((found.train, found.validation, found.test), parts):
        x, y = every(samples)
        assert np.array_equal(x, expected.iloc[:, 3:].to_numpy(np.float32))
        assert np.array_equal(y[:, 0], expected["GROWTH"].to_numpy(np.float32) / np.float32(100))
        assert x.dtype == y.dtype == np.float32


def test_gathering_is_merging_bit_for_bit(folder, frames):
    found = load(UNSCALED, folder, cache=False)
    assert min(len(found.train), len(found.validation), len(found.test)) > 10
    assert_same_samples(found, merged(frames))


def test_all_features_are_joined_where_all_are_known(folder, frames):
    parameters = P1B3(cell_features=("all",), drug_features=("descriptors", "latent"), scaling="none")
    found = load(parameters, folder, cache=False)
    assert found.features == 1 + sum(WIDTHS.values()) + 9 + 4
    assert_same_samples(found, merged(frames, assays=tuple(WIDTHS), drugs=("descriptors", "latent")))


def test_wide_rows_are_gathered_alike(folder, monkeypatch):
    found = load(UNSCALED, folder, cache=False)
    narrow = every(found.train)[0]
    monkeypatch.setattr(data, "WIDE_ROW_BYTES", 0)
    assert np.array_equal(every(found.train)[0], narrow)


def test_tables_are_filled_and_standardised(tmp_path, frames):
    table = frames["descriptors"].copy()
    values = table.iloc[:, 1:].to_numpy(copy=True)
    values[np.random.default_rng(1).random(values.shape) < 0.2] = np.nan
    values[:, 4] = np.nan
    table.iloc[:, 1:] = values
    write(tmp_path, frames | {"descriptors": table})
    found = load(P1B3(), tmp_path, cache=False)
    expected = StandardScaler().fit_transform(SimpleImputer().fit_transform(np.delete(values, 4, axis=1)))
    np.testing.assert_allclose(tables(found).drugs, expected, atol=1e-6)
    cells = StandardScaler().fit_transform(frames["expressions"].iloc[:, 1:])
    np.testing.assert_allclose(tables(found).cells, cells, atol=1e-6)
    assert found.features == 1 + 30 + 8


def test_the_proteome_is_scaled_over_the_cells_that_the_kinome_has(folder, frames):
    found = load(P1B3(cell_features=("proteome",)), folder, cache=False)
    both = frames["proteome"].merge(frames["kinome"], on="CellLine")
    expected = StandardScaler().fit_transform(both.iloc[:, 1:])
    np.testing.assert_allclose(tables(found).cells, expected, atol=1e-6)


@pytest.mark.parametrize("gap", ["na", "-", "", "NA", "nan"])
def test_every_token_for_a_gap_is_known(folder, frames, gap):
    table = frames["expressions"].astype(object)
    table.iloc[3, 5] = gap
    table.to_csv(folder / NAMES["expressions"], sep="\t", index=False)
    found = load(UNSCALED, folder, cache=False)
    others = frames["expressions"].iloc[:, 5].drop(3).mean()
    assert tables(found).cells[3, 4] == pytest.approx(others, abs=1e-6)


def test_drugs_may_have_names_instead_of_numbers(tmp_path, frames):
    named = dict(frames)
    for role, column in (
        ("dose_response", "NSC"),
        ("descriptors", "NAME"),
        ("latent", "NSC"),
        ("test_drugs", "NSC"),
    ):
        named[role] = frames[role].assign(**{column: "drug " + frames[role][column].astype(str)})
    write(tmp_path, named)
    assert_same_samples(load(UNSCALED, tmp_path, cache=False), merged(named))


def test_drugs_may_be_numbers_in_one_file_and_names_in_another(tmp_path, frames):
    more = pd.concat(
        [frames["descriptors"].astype({"NAME": object}), frames["descriptors"][:1].assign(NAME="aspirin")]
    )
    write(tmp_path, frames | {"descriptors": more})
    assert_same_samples(load(UNSCALED, tmp_path, cache=False), merged(frames))


def test_rows_may_be_kept_as_they_are(folder, frames):
    found = load(P1B3(subsample="none", min_logconc=-9, max_logconc=0), folder, cache=False)
    rows = frames["dose_response"]
    known = rows["NSC"].isin(DRUGS) & (rows["CELLNAME"] != "XX:UNKNOWN")
    assert len(tables(found).growth) == known.sum()


def test_the_test_may_use_cells_that_training_sees(folder):
    found = load(P1B3(test_cell_split=0.25), folder, cache=False)
    cells, drugs = tables(found).cell_of, tables(found).drug_of
    train, test = found.train.rows, found.test.rows
    assert len(set(cells[test])) == 3  # of 12
    assert set(cells[test]) <= set(cells[train])
    assert not set(drugs[test]) & set(drugs[train])
    listed = load(P1B3(), folder, cache=False)
    cells = tables(listed).cell_of
    assert not set(cells[listed.test.rows]) & set(cells[listed.train.rows])
    assert np.array_equal(train, listed.train.rows)


def test_some_features_of_each_set(folder):
    """Of 30 of cell lines (and 6 of their miRNA) and 9 of drugs; fewer than asked for are all used."""
    whole = tables(load(P1B3(), folder, cache=False))
    for wanted, cells, drugs in ((7, 7, 7), (20, 20, 9)):
        some = tables(load(P1B3(feature_subsample=wanted), folder, cache=False))
        assert (some.cells.shape[1], some.drugs.shape[1], some.features) == (cells, drugs, 1 + cells + drugs)
        for part, every in ((some.cells, whole.cells), (some.drugs, whole.drugs)):
            assert {column.tobytes() for column in part.T} <= {column.tobytes() for column in every.T}
    both = load(P1B3(cell_features=("all",), feature_subsample=8), folder, cache=False)
    assert tables(both).cells.shape[1] == 8 + 6 + 8
    assert both.features == 1 + 22 + 8


def test_loading_from_the_cache_gives_the_same_and_leaves_it_alone(folder, tmp_path):
    fresh, first, second, third = (
        load(P1B3(), folder, cache=kept) for kept in (False, *[tmp_path / "cache"] * 3)
    )
    for found in (first, second, third):
        assert np.array_equal(every(found.train)[0], every(fresh.train)[0])


def batches(found: TrainingData, size: int, rank: int = 0, *, epoch: int = 0, seed: int = 1, shuffle: bool = True) -> list[Any]:
    """One rank's of an epoch, of 20 each."""
    rows = len(found.train)
    plan = Plan(
        ranks=size, passes=1, parallel="steps", epochs=2, steps=-(-rows // size // 20), local_batch=20, rate=0.1, samples_per_epoch=rows
    )
    taken = TrainingBatches(found.train, plan, seed=seed, shuffle=shuffle, rank=rank, size=size)
    taken.epoch = epoch
    return [taken[number] for number in range(len(taken))]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_visits_every_row_once_over_the_ranks(folder, size):
    found = load(P1B3(), folder, cache=False)
    seen = np.concatenate([np.column_stack([y, x]) for rank in range(size) for x, y in batches(found, size, rank)])
    x, y = every(found.train)
    expected = np.column_stack([y, x])
    assert np.array_equal(seen[np.lexsort(seen.T)], expected[np.lexsort(expected.T)])


def test_every_epoch_has_its_own_order(folder):
    found = load(P1B3(), folder, cache=False)

    def order(**options):
        return np.concatenate([y for _, y in batches(found, 1, **options)])[:, 0].tolist()

    assert order(seed=1, epoch=0) == order(seed=1, epoch=0)
    assert order(seed=1, epoch=0) != order(seed=1, epoch=1)
    assert order(seed=1, epoch=0) != order(seed=2, epoch=0)
    assert order(shuffle=False) == every(found.train)[1][:, 0].tolist()


@pytest.mark.parametrize(
    ("role", "change", "message"),
    [
        (
            "dose_response",
            lambda t: t.drop(columns="GROWTH"),
            "no column GROWTH; found NSC, CELLNAME, LOG_CON",
        ),
        ("dose_response", lambda t: t.assign(LOG_CONCENTRATION=-8), "from -5.0 to -4.0; found -8.0 to -8.0"),
        ("dose_response", lambda t: t.assign(CELLNAME="?"), r"no row has both .* cell line \?"),
        (
            "dose_response",
            lambda t: t.assign(NSC=0.5),
            "NSC in data row 1 is 0.5; expected a name or a whole",
        ),
        (
            "expressions",
            lambda t: pd.concat([t, t[4:5]]),
            r"CellLine BR:CELL-\d+ occurs 2 times, first in data row 5",
        ),
        ("test_drugs", lambda t: t.rename(columns={"NSC": "X"}), r"\['X'\]; expected the header NSC"),
        ("test_drugs", lambda t: t[:0], "0 to test on"),
        ("test_celllines", lambda t: t.assign(CELLNAME="nobody"), "0 to test on"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, frames, role, change, message):
    write(tmp_path, frames | {role: change(frames[role])})
    with pytest.raises(DataError, match=f"{NAMES[role]}.*{message}"):
        load(P1B3(), tmp_path, cache=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cell_features": ["genes"]}, "expected a list of expression, mirna, proteome, or"),
        ({"drug_features": "descriptors"}, "expected a list of descriptors, latent, or"),
        ({"scaling": "minabs"}, "scaling='minabs' is unknown. Use one of maxabs"),
        ({"val_split": 1.5}, "val_split=1.5: expected a fraction between 0 and 1"),
        ({"min_logconc": -3}, "min_logconc=-3 is above max_logconc=-4.0"),
        ({"test_cell_split": 2}, "expected a fraction from 0 to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        P1B3(**settings)


def test_files_that_no_chosen_feature_needs_may_be_missing(folder: Path, frames: dict[str, pd.DataFrame]) -> None:
    for role in ("mirna", "proteome", "kinome", "latent"):
        (folder / NAMES[role]).unlink()
    assert_same_samples(load(UNSCALED, folder, cache=False), merged(frames))
    wanted = P1B3(cell_features=("proteome",))
    with pytest.raises(DataError, match=r"needs P1B3_cellline_proteome\.tsv, P1B3_cellline_kinome\.tsv in"):
        load(wanted, folder, cache=False)


@pytest.mark.parametrize("given", [{}, {"preset": "paper", "make_data": True}])
def test_no_file_is_made_among_real_ones(folder: Path, given: dict[str, Any]) -> None:
    settings = RunSettings.from_flat({"benchmark": "p1b3", "data_dir": str(folder), **given})
    make_missing_data(settings)
    (folder / NAMES["expressions"]).unlink()
    there = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(DataError, match=r"needs P1B3_cellline_expressions\.tsv .* Copy it there") as raised:
        make_missing_data(settings)
    assert "--force" not in str(raised.value)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == there


def test_a_file_of_a_made_set_is_made_again(tmp_path: Path) -> None:
    settings = RunSettings.from_flat({"benchmark": "nt3", "preset": "test", "data_dir": str(tmp_path)})
    make_missing_data(settings)
    (tmp_path / "nt_test2.csv").unlink()
    make_missing_data(settings)
    assert (tmp_path / "nt_test2.csv").is_file()
