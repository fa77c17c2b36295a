"""What the made data is for: networks learn it, linear models and means do so clearly less.

Small networks on the `test` preset. The bounds leave room for other machines' rounding; `-s` shows the figures.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.make import make
from farandole.workloads.finding import tables_of

torch = pytest.importorskip("torch")
linear_model = pytest.importorskip("sklearn.linear_model")
nn = torch.nn
Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.soak


@pytest.fixture(autouse=True)
def one_thread_and_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch's optimizers set it where it is not
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def lines(path: Path, delimiter: str = ",") -> list[list[str]]:
    return [line.split(delimiter) for line in path.read_text().splitlines()]


def labelled(name: str, folder: Path) -> tuple[Array, Array, Array, Array]:
    """Train and test features, scaled together to [0, 1], and labels as integers."""
    make(tables_of(name), folder, preset="test")
    header, label = (0, 0) if name == "nt3" else (1, 1)
    train, test = (lines(path)[header:] for path in tables_of(name).find(folder).values())
    both = np.array([row[label + 1 :] for row in train + test], np.float64)
    both -= both.min(axis=0) if name != "nt3" else 0.0
    both /= np.where(both.max(axis=0) == 0, 1, both.max(axis=0))
    labels = np.unique([row[label] for row in train + test], return_inverse=True)[1]
    x, cut = both.astype(np.float32), len(train)
    return x[:cut], labels[:cut], x[cut:], labels[cut:]


def fit(net: Any, optimizer: Any, loss: Any, x: Array, y: Array, *, batch: int, epochs: int) -> None:
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(batch):
            optimizer.zero_grad()
            loss(net(inputs[rows]), targets[rows]).backward()
            optimizer.step()


def predicted(net: Any, x: Array) -> Array:
    with torch.no_grad():
        result: Array = net(torch.from_numpy(x)).numpy()
    return result


def dense(*widths: int, activation: Any) -> list[Any]:
    layers: list[Any] = []
    for width, next_width in pairwise(widths):
        layer = nn.Linear(width, next_width)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers += [layer, activation()]
    return layers[:-1]


def linear_accuracy(x: Array, y: Array, x_test: Array, y_test: Array, strength: float) -> float:
    model = linear_model.LogisticRegression(C=strength, max_iter=200, tol=1e-3)
    return float(model.fit(x, y).score(x_test, y_test))


def test_nt3_a_convolution_sees_what_a_linear_model_cannot(tmp_path: Path) -> None:
    x, y, x_test, y_test = labelled("nt3", tmp_path)
    linear = max(linear_accuracy(x, y, x_test, y_test, strength) for strength in (0.1, 1.0))
    windows = (x.shape[1] - 19 - 9) // 10
    net = nn.Sequential(
        nn.Conv1d(1, 16, 20), nn.ReLU(), nn.Conv1d(16, 16, 10), nn.ReLU(), nn.MaxPool1d(10), nn.Flatten(),
        *dense(16 * windows, 200, 20, 2, activation=nn.ReLU),
    )  # fmt: skip
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    fit(net, adam, nn.CrossEntropyLoss(), x[:, None], y, batch=20, epochs=12)
    network = (predicted(net, x_test[:, None]).argmax(axis=1) == y_test).mean()
    print(f"nt3: logistic regression {linear:.3f}, convolution {network:.3f}")
    assert 0.65 < linear < 0.88
    assert network > 0.93


def correlation(a: Array, b: Array) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def test_p1b1_two_numbers_from_an_autoencoder_beat_two_principal_components(tmp_path: Path) -> None:
    x, _, x_test, _ = labelled("p1b1", tmp_path)
    mean = x.mean(axis=0)
    axes = np.linalg.svd(x - mean, full_matrices=False)[2][:2]
    flat = correlation(x_test, (x_test - mean) @ axes.T @ axes + mean)
    genes = x.shape[1]
    net = nn.Sequential(
        *dense(genes, 200, 100, 2, activation=nn.ReLU), *dense(2, 100, 200, genes, activation=nn.ReLU), nn.Sigmoid()
    )
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    fit(net, adam, nn.MSELoss(), x, x, batch=50, epochs=80)
    curved = correlation(x_test, predicted(net, x_test))
    print(f"p1b1: correlation with PCA {flat:.3f}, with the autoencoder {curved:.3f}")
    assert flat < 0.94
    assert curved > flat + 0.015


def test_p1b2_a_hidden_layer_sees_which_blocks_go_together(tmp_path: Path) -> None:
    x, y, x_test, y_test = labelled("p1b2", tmp_path)
    linear = linear_accuracy(x, y, x_test, y_test, 0.01)
    net = nn.Sequential(*dense(x.shape[1], 256, 128, 64, 10, activation=nn.Sigmoid))
    rms = torch.optim.RMSprop(net.parameters(), 1e-3, alpha=0.9)
    fit(net, rms, nn.CrossEntropyLoss(), x, y, batch=60, epochs=60)
    network = (predicted(net, x_test).argmax(axis=1) == y_test).mean()
    print(f"p1b2: logistic regression {linear:.3f}, network {network:.3f}")
    assert 0.2 < linear < 0.42
    assert network > linear + 0.12


def standardised(path: Path, delimiter: str) -> tuple[list[str], Array]:
    rows = lines(path, delimiter)[1:]
    values = np.array([[np.nan if value in ("na", "-", "") else float(value) for value in row[1:]] for row in rows])
    values = np.where(np.isnan(values), np.nanmean(values, axis=0), values)
    return [row[0] for row in rows], ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)


def additive(cell: Array, drug: Array, dose: Array, y: Array, kept: Array) -> Array:
    """The mean, and what each dose, cell line and drug adds to it, fitted to the kept rows."""
    columns = [np.unique(part, return_inverse=True)[1] for part in (dose, cell, drug)]
    left, total = y - y[kept].mean(), np.full_like(y, y[kept].mean())
    for index in columns * 4:
        sums = np.bincount(index[kept], left[kept], index.max() + 1)
        effect = (sums / np.maximum(1, np.bincount(index[kept], minlength=index.max() + 1)))[index]
        left, total = left - effect, total + effect
    return total


def test_p1b3_a_network_sees_which_drug_fits_which_cell_line(tmp_path: Path) -> None:
    make(tables_of("p1b3"), tmp_path, preset="test")
    paths = tables_of("p1b3").find(tmp_path)
    cells, cell_table = standardised(paths["expressions"], "\t")
    drugs, drug_table = standardised(paths["descriptors"], "\t")
    rows = [row for row in lines(paths["dose_response"])[1:] if row[0] in set(drugs) and float(row[2]) >= -5]
    cell = np.array([cells.index(row[1].replace(":", ".")) for row in rows])
    drug = np.array([drugs.index(row[0]) for row in rows])
    dose, growth = np.array([row[2:] for row in rows], np.float32).T
    y = growth / 100
    kept = np.arange(len(y)) % 10 > 0  # rows are in no order
    x = np.concatenate([dose[:, None], cell_table[cell], drug_table[drug]], axis=1)
    means = float(((additive(cell, drug, dose, y, kept) - y)[~kept] ** 2).mean())
    net = nn.Sequential(*dense(x.shape[1], 128, 64, 1, activation=nn.ReLU))
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    fit(net, adam, nn.MSELoss(), x[kept], y[kept][:, None], batch=100, epochs=6)
    network = float(((predicted(net, x[~kept])[:, 0] - y[~kept]) ** 2).mean())
    print(f"p1b3: squared error of the means {means:.3f}, of the network {network:.3f}, variance {y.var():.3f}")
    assert means < 0.75 * y.var()
    assert network < 0.75 * means
