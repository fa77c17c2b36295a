"""Real data for the CANDLE benchmarks' models, out of packages that pip and apt have: nothing is fetched from elsewhere.

    GDSC     drug response and genomic features of 988 cell lines, in the source distribution of gdsctools 1.0.1 (PyPI)
    Golub    gene expression of 38 leukaemias, in Debian's r-bioc-multtest

A package is kept in a folder and fetched once. Without a network, put it there yourself.
"""

import argparse
import csv
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import farandole

GDSC = "gdsctools-1.0.1.tar.gz"
GDSC_SHA256 = "72bba53d42150b88b1e186da5d12d94eb2c9f5ac529f4c9f800f98639cf9d82b"
GOLUB = "r-bioc-multtest"
DEFAULT_FOLDER = Path("out", "real-data")

Array = NDArray[np.float32]


class NoData(SystemExit):
    """The data are not there, or not what they should be; the message says what to do."""


def add_options(parser: argparse.ArgumentParser, *, folds: int, epochs: int) -> None:
    text = f"where the package is, or is to be kept; default: {DEFAULT_FOLDER}"
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help=text)
    parser.add_argument("--folds", type=int, default=folds, metavar="K", help=f"of the cross-validation; default: {folds}")
    parser.add_argument("--epochs", type=int, default=epochs, metavar="E", help=f"of each training; default: {epochs}")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of folds and weights; default: 1")


def fetched(fetch: Callable[[Path], Path], folder: Path) -> Path:
    """A package that rank 0 has fetched. Collective: every rank calls it."""
    farandole.init()
    if farandole.rank() == 0:
        fetch(folder)
    farandole.barrier()
    return fetch(folder)


def say(text: str) -> None:
    if farandole.rank() == 0:
        print(text, flush=True)


# Packages


def fetched_gdsc(folder: Path) -> Path:
    """gdsctools' source distribution, by pip unless it is in `folder`."""
    package = folder / GDSC
    if not package.exists():
        name = GDSC.removesuffix(".tar.gz").replace("-", "==")
        words = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", name]
        _fetch(words, "gdsctools-*.tar.gz", package)
    found = hashlib.sha256(package.read_bytes()).hexdigest()
    if found != GDSC_SHA256:
        raise NoData(f"{package} is not the file it should be (sha256 {found}). Remove it, and start again.")
    return package


def fetched_golub(folder: Path) -> Path:
    """Debian's package, by apt-get unless it is in `folder`."""
    there = sorted(folder.glob(f"{GOLUB}_*.deb"))
    package = there[-1] if there else folder / f"{GOLUB}_fetched.deb"
    if not there:
        if shutil.which("apt-get") is None:
            raise NoData(
                f"there is no apt-get here. Put a package {GOLUB}_*.deb of Debian or Ubuntu into {folder}."
            )
        _fetch(["apt-get", "download", GOLUB], f"{GOLUB}_*.deb", package)
    return package


def _fetch(words: list[str], pattern: str, package: Path) -> None:
    """Run a command that leaves a file in its working folder, and keep that file whole or not at all."""
    package.parent.mkdir(parents=True, exist_ok=True)
    print(f"fetching: {' '.join(words)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=package.parent) as place:
        run = subprocess.run(words, cwd=place, capture_output=True, text=True)
        found = list(Path(place).glob(pattern))
        if run.returncode != 0 or not found:
            told = (run.stderr or run.stdout).strip().splitlines()[-1:]
            raise NoData(
                f"`{' '.join(words)}` did not deliver: {''.join(told)}\nWithout a network, put {pattern} into "
                f"{package.parent}, or name the folder that has it with --data-dir."
            )
        found[0].replace(package)


# GDSC


@dataclass(frozen=True, slots=True)
class Features:
    """What is known of the cell lines."""

    cells: list[str]
    tissues: list[str]
    values: Array
    """(cell lines, features): 1 where a gene is mutated, or a region gained or lost."""


@dataclass(frozen=True, slots=True)
class Responses:
    """How much of a drug it takes: the logarithm of the IC50."""

    cells: list[str]
    drugs: list[str]
    values: Array
    """(cell lines, drugs); nan where it was not measured."""


def gdsc_features(package: Path) -> Features:
    names, rows = _table(package, "genomic_features_v17.csv.gz", ["COSMIC_ID", "TISSUE_FACTOR"])
    del names
    return Features([row[0] for row in rows], [row[1] for row in rows], _numbers(row[2:] for row in rows))


def gdsc_responses(package: Path) -> Responses:
    names, rows = _table(package, "IC50_v17.csv.gz", ["COSMIC_ID"])
    return Responses([row[0] for row in rows], names[1:], _numbers(row[1:] for row in rows))


def _table(package: Path, name: str, begins: list[str]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of one of the package's tables."""
    with tarfile.open(package) as archive:
        member = next((one for one in archive if one.name.endswith(f"/data/{name}")), None)
        file = None if member is None else archive.extractfile(member)
        if file is None:
            raise NoData(f"{package} has no {name}")
        text = gzip.decompress(file.read()).decode()
    header, *rows = csv.reader(io.StringIO(text))
    if header[: len(begins)] != begins or any(len(row) != len(header) for row in rows):
        raise NoData(f"{package}: {name} begins with {header[:3]}; expected {begins}, and as many values in all rows")
    return header, rows


def _numbers(rows: Iterator[list[str]]) -> Array:
    return np.array([[float(text) if text else np.nan for text in row] for row in rows], np.float32)


# Golub


def golub(package: Path) -> tuple[Array, NDArray[np.intp]]:
    """(samples, genes), and 0 for ALL or 1 for AML."""
    try:
        import rdata
    except ImportError:
        raise NoData("rdata reads R's files and is not there. Type: pip install rdata") from None
    found: dict[str, Any] = rdata.conversion.convert(rdata.parser.parse_data(_golub_file(package)))
    return np.asarray(found["golub"], np.float32).T, np.asarray(found["golub.cl"]).astype(np.intp)


def _golub_file(package: Path) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(_content(package))) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith("multtest/data/golub.RData") else None
            if file is not None:
                return file.read()
    raise NoData(f"{package} has no golub.RData")


def _content(package: Path) -> bytes:
    """The archive data.tar.* in a Debian package, which is an `ar` archive: headers of 60 bytes, even lengths."""
    data = package.read_bytes()
    at = len(b"!<arch>\n")
    while data.startswith(b"!<arch>\n") and at + 60 <= len(data):
        name, length = data[at : at + 16].decode().strip(), int(data[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return data[at + 60 : at + 60 + length]
        at += 60 + length + length % 2
    raise NoData(f"{package} is no Debian package")


# Cross-validation


def folds(groups: NDArray[Any], count: int, seed: int) -> list[NDArray[np.intp]]:
    """Rows of each fold, every group spread over all of them."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    return [np.sort(order[fold::count]) for fold in range(count)]


def rest_of(rows: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    return np.setdiff1d(np.arange(count), rows)


def logistic_regression(x: Array, labels: NDArray[np.intp], penalty: float, steps: int = 300) -> Callable[[Array], Any]:
    """Multinomial, with a penalty on the squares of its weights, by accelerated gradient descent; what it predicts."""
    mean, classes = x.mean(axis=0), np.eye(labels.max() + 1, dtype=np.float32)
    inputs = np.hstack([x - mean, np.ones((len(x), 1), np.float32)])
    weights = ahead = np.zeros((inputs.shape[1], classes.shape[1]), np.float32)
    steepest = 0.5 * np.linalg.norm(inputs, 2) ** 2 / len(x) + penalty
    for step in range(steps):
        scores = inputs @ ahead
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        slope = inputs.T @ (chances - classes[labels]) / len(x) + penalty * ahead
        before, weights = weights, ahead - slope / steepest
        ahead = weights + step / (step + 3) * (weights - before)
    return lambda new: (np.hstack([new - mean, np.ones((len(new), 1), np.float32)]) @ weights).argmax(axis=1)


def shown(name: str, scores: list[float]) -> str:
    return f"{name:<28}{np.mean(scores):7.3f}   folds {'  '.join(f'{score:.3f}' for score in scores)}"
