"""P1B3: what its batches hold equals the merge of its tables, and what is wrong with a file of one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

from farandole.benchmarks import benchmark
from farandole.data.candle import p1b3
from farandole.data.candle.p1b3 import P1B3Data, P1B3Settings
from farandole.errors import DataError, SettingsError
from farandole.train.session import make_missing_data
from farandole.train.settings import RunSettings

CELLS = [f"BR.CELL-{number}" for number in range(14)]
DRUGS = list(range(100, 160))
WIDTHS = {"expressions": 30, "mirna": 6, "proteome": 8, "kinome": 3}
UNSCALED = P1B3Settings(scaling="none")


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


def assert_same_samples(data: P1B3Data, parts: tuple[pd.DataFrame, ...]) -> None:
    for rows, expected in zip((data.train, data.validation, data.test), parts):
        x, y = data.gather(rows)
        assert np.array_equal(x, expected.iloc[:, 3:].to_numpy(np.float32))
        assert np.array_equal(y, expected["GROWTH"].to_numpy(np.float32) / np.float32(100))
        assert x.dtype == y.dtype == np.float32


def test_gathering_is_merging_bit_for_bit(folder, frames):
    data = p1b3.load(folder, UNSCALED, cache=False)
    assert min(len(data.train), len(data.validation), len(data.test)) > 10
    assert_same_samples(data, merged(frames))


def test_all_features_are_joined_where_all_are_known(folder, frames):
    settings = P1B3Settings(cell_features=["all"], drug_features=["descriptors", "latent"], scaling="none")
    data = p1b3.load(folder, settings, cache=False)
    assert data.features == 1 + sum(WIDTHS.values()) + 9 + 4
    assert_same_samples(data, merged(frames, assays=tuple(WIDTHS), drugs=("descriptors", "latent")))


def test_wide_rows_are_gathered_alike(folder, monkeypatch):
    data = p1b3.load(folder, UNSCALED, cache=False)
    narrow = data.gather(data.train)[0]
    monkeypatch.setattr(p1b3, "WIDE_ROW_BYTES", 0)
    assert np.array_equal(data.gather(data.train)[0], narrow)


def test_tables_are_filled_and_standardised(tmp_path, frames):
    table = frames["descriptors"].copy()
    values = table.iloc[:, 1:].to_numpy(copy=True)
    values[np.random.default_rng(1).random(values.shape) < 0.2] = np.nan
    values[:, 4] = np.nan
    table.iloc[:, 1:] = values
    write(tmp_path, frames | {"descriptors": table})
    data = p1b3.load(tmp_path, cache=False)
    expected = StandardScaler().fit_transform(SimpleImputer().fit_transform(np.delete(values, 4, axis=1)))
    np.testing.assert_allclose(data.drugs, expected, atol=1e-6)
    cells = StandardScaler().fit_transform(frames["expressions"].iloc[:, 1:])
    np.testing.assert_allclose(data.cells, cells, atol=1e-6)
    assert data.features == 1 + 30 + 8


def test_the_proteome_is_scaled_over_the_cells_that_the_kinome_has(folder, frames):
    data = p1b3.load(folder, P1B3Settings(cell_features=["proteome"]), cache=False)
    both = frames["proteome"].merge(frames["kinome"], on="CellLine")
    expected = StandardScaler().fit_transform(both.iloc[:, 1:])
    np.testing.assert_allclose(data.cells, expected, atol=1e-6)


@pytest.mark.parametrize("gap", ["na", "-", "", "NA", "nan"])
def test_every_token_for_a_gap_is_known(folder, frames, gap):
    table = frames["expressions"].astype(object)
    table.iloc[3, 5] = gap
    table.to_csv(folder / NAMES["expressions"], sep="\t", index=False)
    data = p1b3.load(folder, UNSCALED, cache=False)
    others = frames["expressions"].iloc[:, 5].drop(3).mean()
    assert data.cells[3, 4] == pytest.approx(others, abs=1e-6)


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
    assert_same_samples(p1b3.load(tmp_path, UNSCALED, cache=False), merged(named))


def test_drugs_may_be_numbers_in_one_file_and_names_in_another(tmp_path, frames):
    more = pd.concat(
        [frames["descriptors"].astype({"NAME": object}), frames["descriptors"][:1].assign(NAME="aspirin")]
    )
    write(tmp_path, frames | {"descriptors": more})
    assert_same_samples(p1b3.load(tmp_path, UNSCALED, cache=False), merged(frames))


def test_rows_may_be_kept_as_they_are(folder, frames):
    data = p1b3.load(folder, P1B3Settings(balance=False, min_logconc=-9, max_logconc=0), cache=False)
    rows = frames["dose_response"]
    known = rows["NSC"].isin(DRUGS) & (rows["CELLNAME"] != "XX:UNKNOWN")
    assert len(data.growth) == known.sum()


def test_the_test_may_use_cells_that_training_sees(folder):
    data = p1b3.load(folder, P1B3Settings(test_cell_split=0.25), cache=False)
    assert len(set(data.cell_of[data.test])) == 3  # of 12
    assert set(data.cell_of[data.test]) <= set(data.cell_of[data.train])
    assert not set(data.drug_of[data.test]) & set(data.drug_of[data.train])
    listed = p1b3.load(folder, cache=False)
    assert not set(listed.cell_of[listed.test]) & set(listed.cell_of[listed.train])
    assert np.array_equal(data.train, listed.train)


def test_some_features_of_each_set(folder):
    """Of 30 of cell lines (and 6 of their miRNA) and 9 of drugs; fewer than asked for are all used."""
    whole = p1b3.load(folder, cache=False)
    for wanted, cells, drugs in ((7, 7, 7), (20, 20, 9)):
        some = p1b3.load(folder, P1B3Settings(feature_subsample=wanted), cache=False)
        assert (some.cells.shape[1], some.drugs.shape[1], some.features) == (cells, drugs, 1 + cells + drugs)
        for part, every in ((some.cells, whole.cells), (some.drugs, whole.drugs)):
            assert {column.tobytes() for column in part.T} <= {column.tobytes() for column in every.T}
    both = p1b3.load(folder, P1B3Settings(cell_features=["all"], feature_subsample=8), cache=False)
    assert both.cells.shape[1] == 8 + 6 + 8
    train = benchmark("p1b3").load(folder, benchmark("p1b3").parameters(feature_subsample=7))
    assert train.features == 15


def test_loading_from_the_cache_gives_the_same_and_leaves_it_alone(folder, tmp_path):
    fresh, first, second, third = (
        p1b3.load(folder, cache=kept) for kept in (False, *[tmp_path / "cache"] * 3)
    )
    for data in (first, second, third):
        assert np.array_equal(data.gather(data.train)[0], fresh.gather(fresh.train)[0])


def test_another_seed_draws_other_rows(folder):
    one, same, other = (p1b3.load(folder, P1B3Settings(seed=seed), cache=False) for seed in (1, 1, 2))
    assert np.array_equal(one.train, same.train)
    assert not np.array_equal(one.growth, other.growth)


@pytest.fixture
def data(folder: Path) -> P1B3Data:
    return p1b3.load(folder, cache=False)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_visits_every_row_once_over_the_ranks(data, size):
    ranks = [list(data.batches(data.train, 20, seed=1, rank=rank, size=size)) for rank in range(size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = np.concatenate([np.column_stack([y, x]) for batches in ranks for x, y in batches])
    x, y = data.gather(data.train)
    expected = np.column_stack([y, x])
    assert np.array_equal(seen[np.lexsort(seen.T)], expected[np.lexsort(expected.T)])


def test_every_epoch_has_its_own_order(data):
    def order(**options):
        return np.concatenate([y for _, y in data.batches(data.train, 50, **options)]).tolist()

    assert order(seed=1, epoch=0) == order(seed=1, epoch=0)
    assert order(seed=1, epoch=0) != order(seed=1, epoch=1)
    assert order(seed=1, epoch=0) != order(seed=2, epoch=0)
    assert order() == data.growth[data.train].tolist()


def test_batches_can_share_a_buffer(data):
    buffer = np.empty((50, data.features), np.float32)
    fresh = [x for x, _ in data.batches(data.validation, 50)]
    for x, expected in zip(data.batches(data.validation, 50, out=buffer), fresh):
        assert np.shares_memory(x[0], buffer)
        assert np.array_equal(x[0], expected)
    with pytest.raises(SettingsError, match="out has shape"):
        data.gather(data.train, out=buffer)


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
        p1b3.load(tmp_path, cache=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cell_features": ["genes"]}, "expected a list of expression, mirna, proteome, or"),
        ({"drug_features": "descriptors"}, "expected a list of descriptors, latent, or"),
        ({"scaling": "minabs"}, "unknown scaling 'minabs'"),
        ({"validation": 1.5}, "validation=1.5: expected a fraction between 0 and 1"),
        ({"min_logconc": -3}, "min_logconc=-3 is above max_logconc=-4.0"),
        ({"test_cell_split": 2}, "expected a fraction from 0 to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        P1B3Settings(**settings)


def test_files_that_no_chosen_feature_needs_may_be_missing(folder: Path, frames: dict[str, pd.DataFrame]) -> None:
    for role in ("mirna", "proteome", "kinome", "latent"):
        (folder / NAMES[role]).unlink()
    assert_same_samples(p1b3.load(folder, UNSCALED, cache=False), merged(frames))
    wanted = P1B3Settings(cell_features=["proteome"])
    with pytest.raises(DataError, match=r"needs P1B3_cellline_proteome\.tsv, P1B3_cellline_kinome\.tsv in"):
        p1b3.load(folder, wanted, cache=False)


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
