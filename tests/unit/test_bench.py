"""The benchmarks' figures: what is made of samples, and that ranks deliver them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bench.cases import Case
from bench.estimates import median, median_difference, overhead_bound, ratio_of_medians
from bench.rows import compared, fastest, overhead, share, table

from ranktest import run_ranks
from repository import ROOT


def noisy(typical: float, *, spread: float, seed: int, count: int = 200) -> list[float]:
    """Samples whose logarithm is normal, as times of a busy machine are."""
    source = np.random.default_rng(seed)
    return (typical * np.exp(source.normal(0.0, spread, count))).tolist()


def test_a_median_does_not_follow_an_outlier() -> None:
    assert median([3.0, 1.0, 2.0, 900.0, 2.0]) == 2.0


def test_a_ratio_without_noise_has_no_width() -> None:
    found = ratio_of_medians([4.0] * 7, [2.0] * 7)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_an_interval_holds_the_true_ratio_about_95_times_in_100() -> None:
    held = 0
    for trial in range(100):
        found = ratio_of_medians(
            noisy(3.0, spread=0.2, seed=2 * trial, count=40),
            noisy(2.0, spread=0.2, seed=2 * trial + 1, count=40),
        )
        held += found.low <= 1.5 <= found.high
    assert 88 <= held <= 100


def test_more_samples_make_an_interval_narrower() -> None:
    def width(count: int) -> float:
        found = ratio_of_medians(
            noisy(3.0, spread=0.2, seed=1, count=count), noisy(2.0, spread=0.2, seed=2, count=count)
        )
        return found.high - found.low

    assert width(400) < 0.6 * width(40)


def test_what_slows_both_of_a_pair_down_does_not_blur_their_difference() -> None:
    drift = np.linspace(1.0, 5.0, 60)
    found = median_difference((drift + 0.5).tolist(), drift.tolist())
    assert found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(0.5)


def test_an_overhead_lies_below_its_bound() -> None:
    base = np.array(noisy(1.0, spread=0.3, seed=3))
    value, bound = overhead_bound((base * np.array(noisy(1.01, spread=0.02, seed=4))).tolist(), base.tolist())
    assert value == pytest.approx(0.01, abs=0.005)
    assert value < bound < value + 0.01


@pytest.mark.parametrize(("above", "below"), [([], []), ([1.0, 2.0], [1.0])])
def test_samples_that_are_no_pairs_are_refused(above: list[float], below: list[float]) -> None:
    with pytest.raises(ValueError, match="equally many"):
        ratio_of_medians(above, below)


CASE = Case(what="100 MiB", samples={"ours": [2.0] * 5, "by hand": [3.0] * 5, "in place": [2.5] * 5})


def test_a_target_is_met_from_its_value_on() -> None:
    rows = [compared(CASE, "ours", "by hand", least=least) for least in (1.5, 1.51)]
    assert [row.target is not None and row.target.met for row in rows] == [True, False]


def test_a_target_may_be_a_difference() -> None:
    rows = [compared(CASE, "by hand", "ours", within_s=within) for within in (1.0, 0.9)]
    assert [row.target is not None and row.target.met for row in rows] == [True, False]


def test_the_fastest_peer_is_the_one_to_beat() -> None:
    assert fastest(CASE, ["by hand", "in place"]) == "in place"


def test_the_busiest_rank_counts() -> None:
    target = share(Case(what="idle", samples={"ours": [0.001, 0.02]}), "ours", below=0.01).target
    assert target is not None
    assert (target.found, target.met) == (0.02, False)


def test_a_table_says_what_was_met_and_what_was_missed() -> None:
    rows = [
        compared(CASE, "ours", "by hand", least=1.2),
        compared(CASE, "ours", "in place", least=1.7),
        compared(CASE, "ours", "in place"),
        overhead(CASE, "by hand", "ours", below=0.02),
    ]
    lines = table(rows).splitlines()
    assert "1.50x [1.50, 1.50]" in lines[2]
    assert lines[2].endswith("met")
    assert lines[3].endswith("missed")
    assert lines[4].endswith("]")
    assert lines[5].endswith("missed (50.00%)")


@pytest.mark.more
def test_a_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "idle", "--quick", "--json", str(out)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    assert "engine idle" in run.stdout and "for a late rank" in run.stdout
    results = json.loads(out.read_text())
    assert results["machine"]["cores"] >= 1
    (measured,) = results["benchmarks"]["idle"]["measured"]
    assert measured["facts"]["torch_threads"] == 1
    assert measured["facts"]["allocator"] == "environment"
    for case in measured["cases"]:
        assert len({len(seconds) for seconds in case["samples"].values()}) == 1
        assert all(second > 0 for seconds in case["samples"].values() for second in seconds)


PARAMETER_SERVER = """
import sys
from pathlib import Path
import torch
import farandole.torch as hvd
from bench import parameter_server
from bench.contest import Ranks
from bench.models import Workload

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5))
if hvd.rank() == 0:
    parameter_server._RATE = float(sys.argv[1])
work = Workload("small", model, (8, 40), 5, hvd.rank())
cases = parameter_server.race(Ranks(Path()), work, block_steps=2, budget_s=0.2)
result({case.what: {name: len(seconds) for name, seconds in case.samples.items()} for case in cases})
"""


ONE_THREAD = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.mark.soak
def test_a_parameter_server_trains_the_same_weights() -> None:
    found = run_ranks(4, PARAMETER_SERVER, args=["0.01"], env=ONE_THREAD, timeout=90).results
    assert list(found[0]) == ["small step, 3 workers", "small seconds a batch, 4 ranks"]
    for turns in found[0].values():
        assert turns["farandole"] == turns["parameter server"] >= 5


@pytest.mark.soak
def test_a_parameter_server_that_trains_other_weights_is_noticed() -> None:
    run = run_ranks(3, PARAMETER_SERVER, args=["0.02"], env=ONE_THREAD, timeout=90, expect=None)
    assert run.returncode != 0
    assert "the weights of farandole and of the server's worker are" in run.stderr


def test_an_unknown_benchmark_is_named_with_those_there_are() -> None:
    command = [sys.executable, "-m", "bench", "horovod"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "mlp-as-shipped" in run.stderr
