"""Speedup, efficiency and causes of loss, against numbers made by hand."""

import subprocess
import sys

import pytest

from farandole.study.scaling import CAUSES, Scaled, efficient_to, main_cause, scaled, verdict

BASE = {
    "total_s": 100.0, "load_s": 10.0, "broadcast_s": 0.0, "train_s": 80.0, "exposed_s": 0.0, "wait_s": 0.0,
}  # fmt: skip
# On 4 ranks 25 s were ideal. Loading has not shrunk (7.5 s lost), the broadcast is new (1 s), training is 28 s instead
# of 20: 3 s of gradients, 2 s of waiting and 3 s of slower steps; the rest (10 s alone) is 4 s instead of 2.5.
FOUR = {
    "total_s": 43.0, "load_s": 10.0, "broadcast_s": 1.0, "train_s": 28.0, "exposed_s": 5.0, "wait_s": 2.0,
}  # fmt: skip


def test_every_second_lost_has_its_cause() -> None:
    case = scaled(BASE, FOUR, base_ranks=1, ranks=4, work="strong")
    assert case is not None
    assert case.speedup == pytest.approx(100 / 43)
    assert case.efficiency == pytest.approx(25 / 43)
    lost_s = {cause: share * 43 for cause, share in case.lost.items()}
    expected = {"load": 7.5, "broadcast": 1, "communication": 3, "wait": 2, "compute": 3, "other": 1.5}
    assert lost_s == pytest.approx(expected)
    assert sum(case.lost.values()) == pytest.approx(1 - case.efficiency)
    assert main_cause(case) == "load"


def test_weak_scaling_keeps_the_time_and_grows_the_work() -> None:
    # The 2019 paper's NT3 with 8 epochs a GPU: seconds an epoch on 1 and on 3,072 GPUs.
    case = scaled({"total_s": 10.30}, {"total_s": 33.09}, base_ranks=1, ranks=3072, work="weak")
    assert case is not None
    assert case.efficiency == pytest.approx(0.3113, abs=1e-4)
    assert case.speedup == pytest.approx(3072 * 10.30 / 33.09)
    assert case.lost["other"] == pytest.approx(1 - case.efficiency), "what is not known is no cause"


def test_a_base_of_several_ranks() -> None:
    case = scaled({"total_s": 60.0}, {"total_s": 20.0}, base_ranks=2, ranks=8, work="strong")
    assert case is not None
    assert (case.ideal_s, case.speedup, case.efficiency) == pytest.approx((15.0, 3.0, 0.75))


def test_batches_are_compared_at_the_same_ranks() -> None:
    case = scaled({"total_s": 60.0}, {"total_s": 40.0}, base_ranks=2, ranks=2, work="same")
    assert case is not None
    assert (case.speedup, case.efficiency) == pytest.approx((1.5, 1.5))


def test_nothing_is_made_of_an_unknown_total() -> None:
    assert scaled(BASE, {"total_s": None}, base_ranks=1, ranks=2, work="strong") is None
    assert scaled({}, BASE, base_ranks=1, ranks=2, work="strong") is None


def a_case(ranks: int, efficiency: float, cause: str) -> Scaled:
    lost = dict.fromkeys(CAUSES, 0.0) | {cause: 1 - efficiency}
    return Scaled(
        ranks=ranks, base_ranks=1, total_s=1.0, ideal_s=efficiency, speedup=ranks * efficiency, efficiency=efficiency,
        lost=lost,
    )  # fmt: skip


def test_verdicts() -> None:
    one, two = a_case(1, 1.0, "other"), a_case(2, 0.95, "load")
    four, eight = a_case(4, 0.85, "wait"), a_case(8, 0.5, "wait")
    assert efficient_to([eight, one, four, two]) is four
    assert verdict([eight, one, four, two]) == (
        "Efficient to 4 ranks (85%); beyond that most is lost to waiting for slower ranks (50% of the time at 8 ranks)."
    )
    assert verdict([one, two]) == "Efficient to 2 ranks (95%), the most that were tried."
    assert verdict([one, eight]).startswith("Not efficient at 8 ranks (50%): most is lost to waiting for slower ranks")
    assert "nothing to compare" in verdict([one])


def test_it_needs_no_framework_and_no_mpi() -> None:
    code = "import sys, farandole.study.scaling; print([m for m in ('torch', 'keras', 'mpi4py') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"
