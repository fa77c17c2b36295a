"""The examples with real data: packages read and refused as they should be; fetched and trained on in the soak."""

import gzip
import importlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from repository import ROOT

EXAMPLES = ROOT / "examples"
FEATURES = "COSMIC_ID,TISSUE_FACTOR,MSI_FACTOR,ABL2_mut,\"gain_(KLF6,VIM)\"\n1,skin,0,1,0\n2,breast,1,0,0\n3,skin,0,0,1\n"
RESPONSES = "COSMIC_ID,Drug_1_IC50,Drug_3_IC50\n3,,-1.5\n7,0.5,1.5\n1,2.25,\n"


@pytest.fixture(scope="module")
def real_data() -> ModuleType:
    return example("real_data")


def example(name: str) -> ModuleType:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def archive(files: dict[str, bytes], compression: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def gdsc(folder: Path, features: str = FEATURES) -> Path:
    place = "gdsctools-1.0.1/gdsctools/data"
    tables = {"genomic_features_v17.csv.gz": features, "IC50_v17.csv.gz": RESPONSES}
    files = {f"{place}/{name}": gzip.compress(text.encode()) for name, text in tables.items()}
    package = folder / "gdsctools-1.0.1.tar.gz"
    package.write_bytes(archive(files, "gz"))
    return package


def debian(folder: Path, content: dict[str, bytes]) -> Path:
    """An ar archive, with a member of odd length before the one that counts."""
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": archive(content, "xz")}
    parts = [b"!<arch>\n"]
    for name, data in members.items():
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2))
    package = folder / "r-bioc-multtest_2.54.0-1_amd64.deb"
    package.write_bytes(b"".join(parts))
    return package


def test_tables_of_gdsc(real_data: Any, tmp_path: Path) -> None:
    features, responses = real_data.gdsc_features(gdsc(tmp_path)), real_data.gdsc_responses(gdsc(tmp_path))
    assert (features.cells, features.tissues) == (["1", "2", "3"], ["skin", "breast", "skin"])
    assert features.values.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert (responses.cells, responses.drugs) == (["3", "7", "1"], ["Drug_1_IC50", "Drug_3_IC50"])
    assert np.isnan(responses.values[0, 0]) and responses.values[1].tolist() == [0.5, 1.5]


def test_pairs_of_cell_lines_that_both_tables_know(real_data: Any, tmp_path: Path) -> None:
    p1b3 = example("p1b3_gdsc")
    package = gdsc(tmp_path)
    pairs = p1b3.measured(real_data.gdsc_features(package), real_data.gdsc_responses(package))
    x, y = p1b3.Samples(pairs, np.array([1, 0])).batch(np.array([0, 1]))
    # genome of cell line 1, its tissue (breast, skin), the drug; then those of cell line 3
    assert x.tolist() == [[0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 0, 1]]
    assert y.tolist() == [[2.25], [-1.5]]


def test_rare_tissues_are_left_out(real_data: Any, tmp_path: Path) -> None:
    lines = example("p1b2_gdsc").common(real_data.gdsc_features(gdsc(tmp_path)), 2)
    assert (len(lines.x), lines.labels.tolist(), lines.names) == (2, [0, 0], ["skin"])


def test_what_is_no_such_package_is_refused(real_data: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"genomic_features_v17.csv.gz begins with \['A', 'B'\]; expected"):
        real_data.gdsc_features(gdsc(tmp_path, "A,B\n1,2\n"))
    with pytest.raises(SystemExit, match="is not the file it should be"):
        real_data.fetched_gdsc(gdsc(tmp_path).parent)
    with pytest.raises(SystemExit, match=r"has no golub\.RData"):
        real_data.golub(debian(tmp_path, {"./usr/share/doc": b"x"}))
    (tmp_path / "r-bioc-multtest_9_all.deb").write_bytes(b"<html>")
    with pytest.raises(SystemExit, match="is no Debian package"):
        real_data.golub(real_data.fetched_golub(tmp_path))


def test_without_a_network_it_says_what_to_do(real_data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match=r"did not deliver: .*\n.*put gdsctools-\*.tar.gz into"):
        real_data.fetched_gdsc(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="there is no apt-get here"):
        real_data.fetched_golub(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_leukaemias_in_a_debian_package(real_data: Any, tmp_path: Path) -> None:
    rdata = pytest.importorskip("rdata")
    file = tmp_path / "golub.RData"
    rdata.write_rda(file, {"golub": np.arange(6.0).reshape(3, 2), "golub.cl": np.array([0.0, 1.0])})
    package = debian(tmp_path, {"./usr/lib/R/site-library/multtest/data/golub.RData": file.read_bytes()})
    x, labels = real_data.golub(package)
    assert (x.tolist(), labels.tolist()) == ([[0, 2, 4], [1, 3, 5]], [0, 1])


def test_folds_have_every_row_once_and_every_group_alike(real_data: Any) -> None:
    groups = np.repeat([0, 1, 2], [30, 15, 6])
    found = real_data.folds(groups, 3, seed=1)
    assert sorted(np.concatenate(found).tolist()) == list(range(51))
    assert [np.bincount(groups[fold]).tolist() for fold in found] == [[10, 5, 2]] * 3


def test_logistic_regression_finds_the_weights_labels_were_drawn_with(real_data: Any) -> None:
    rng = np.random.default_rng(0)
    true, x = rng.normal(size=(5, 3)), rng.normal(size=(4000, 5)).astype(np.float32)
    labels = (x @ true + rng.gumbel(size=(4000, 3))).argmax(axis=1)
    found = real_data.logistic_regression(x[:2000], labels[:2000], 1e-4)(x[2000:])
    best = (x[2000:] @ true).argmax(axis=1)
    assert np.mean(best == labels[2000:]) < 0.8, "there is noise"
    assert np.mean(found == best) > 0.93


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "options", "baseline", "network"),
    [
        ("p1b2_gdsc", ["--folds", "3"], "most common tissue", "P1B2's network"),
        ("p1b3_gdsc", ["--folds", "2", "--epochs", "1"], "mean of the drug", "P1B3's network"),
        ("nt3_golub", ["--folds", "3", "--epochs", "8"], "more common kind", "NT3's network"),
    ],
)
def test_networks_learn_from_real_data(
    name: str, options: list[str], baseline: str, network: str, tmp_path: Path
) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--data-dir", str(tmp_path), *options],
        capture_output=True, text=True, timeout=800, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "2"},
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    lines = [line for line in run.stdout.splitlines() if re.search(r"0\.\d+", line)]
    scores = {line[:28].strip(): float(re.findall(r"0\.\d+", line)[0]) for line in lines}
    assert scores[network] > scores[baseline], run.stdout
