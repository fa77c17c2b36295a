"""Efficiency and losses, where the true ones are known."""

import subprocess
import sys

import pytest

from farandole.results.cases import Case
from farandole.results.scaling import against, parts_s, scaling_of
from farandole.results.schema import Result


def case_of(ranks: int, **measures: float | None) -> Case:
    result = Result(
        key="k", settings={"ranks": ranks}, repeat=0, ok=True, reason=None, run=None, marks=(), measures=measures, reasons={}
    )
    return Case(settings={"ranks": ranks}, results=[result])


def run(ranks: int, *, load: float, train: float, exposed: float | None = None, wait: float | None = None, **more: float) -> Case:
    total = load + train + sum(more.values())
    measures = {"load_s": load, "train_s": train, "exposed_s": exposed, "wait_s": wait, **more}
    return case_of(ranks, total_s=total, **measures)


def test_perfect_strong_scaling_loses_nothing() -> None:
    base, four = scaling_of([run(1, load=8.0, train=92.0), run(4, load=2.0, train=23.0)], work="strong")
    assert (base.efficiency, four.efficiency, four.speedup, four.losses) == (1.0, 1.0, 4.0, {})


def test_weak_scaling_on_the_same_cores_does_more_work_in_more_time() -> None:
    """One rank of two threads against two of one each: twice the work."""
    one, two = case_of(1, total_s=10.0), case_of(2, total_s=20.0)
    one.settings["threads"], two.settings["threads"] = 2, 1
    found = against(one, two, work="weak")
    assert found is not None and (found.speedup, found.efficiency) == (pytest.approx(1.0), pytest.approx(1.0))


def test_perfect_weak_scaling_takes_the_same_time() -> None:
    _, four = scaling_of([run(1, load=8.0, train=92.0), run(4, load=8.0, train=92.0)], work="weak")
    assert (four.efficiency, four.speedup) == (1.0, 4.0)


def test_losses_are_what_each_part_takes_beyond_its_share() -> None:
    _, four = scaling_of(
        [run(1, load=10.0, train=90.0, exposed=0.0, wait=0.0), run(4, load=10.0, train=30.0, exposed=7.5, wait=2.5)], work="strong"
    )
    assert four.efficiency == pytest.approx(25 / 40)
    assert four.losses == pytest.approx({"load": 7.5 / 40, "allreduce": 5 / 40, "straggler": 2.5 / 40})
    assert sum(four.losses.values()) + four.efficiency == pytest.approx(1.0)
    assert list(four.losses) == ["load", "allreduce", "straggler"]


def test_losses_are_net_of_gains_and_still_add_up() -> None:
    _, two = scaling_of([run(1, load=10.0, train=90.0), run(2, load=15.0, train=40.0)], work="strong")
    assert two.gained_s == pytest.approx(5.0)
    assert two.losses == pytest.approx({"load": 5 / 55})
    assert two.efficiency == pytest.approx(50 / 55)


def test_parts_add_up_to_the_total() -> None:
    parts = parts_s(run(2, load=3.0, train=20.0, exposed=6.0, wait=9.0, data_stall_s=1.0, evaluate_s=2.0, start_s=4.0))
    assert sum(parts.values()) == pytest.approx(30.0)
    assert parts["straggler"] == 6.0
    assert parts["allreduce"] == 0.0


def test_a_case_that_does_not_tell_waiting_apart_is_compared_with_training_as_a_whole() -> None:
    _, two = scaling_of([run(1, load=0.0, train=100.0, exposed=1.0), run(2, load=0.0, train=60.0)], work="strong")
    assert two.losses == pytest.approx({"compute": 10 / 60})


def test_the_base_is_on_the_fewest_ranks_and_cases_without_a_time_are_left_out() -> None:
    found = scaling_of([run(8, load=1.0, train=9.0), case_of(2, total_s=None), run(4, load=1.0, train=19.0)], work="strong")
    assert [one.ranks for one in found] == [4, 8]
    assert (found[1].ideal_s, found[1].speedup, found[1].efficiency) == pytest.approx((10.0, 2.0, 1.0))
    assert scaling_of([case_of(1, total_s=None)], work="strong") == []


def test_without_phases_what_the_trace_shows_is_still_told() -> None:
    alone = case_of(1, total_s=40.0, exposed_s=0.0, wait_s=0.0, data_stall_s=0.0)
    _, two = scaling_of([alone, case_of(2, total_s=35.0, exposed_s=14.0, wait_s=2.0, data_stall_s=1.0)], work="strong")
    assert two.losses == pytest.approx({"allreduce": 12 / 35, "straggler": 2 / 35, "stall": 1 / 35})
    assert parts_s(two.case)["rest"] == pytest.approx(20.0)


def test_cases_that_tell_nothing_apart_are_compared_as_a_whole() -> None:
    _, two = scaling_of([run(1, load=0.0, train=90.0, exposed=0.0, build_s=10.0), case_of(2, total_s=80.0)], work="strong")
    assert two.losses == pytest.approx({"rest": 30 / 80})


def test_without_any_total_training_is_compared_alone() -> None:
    _, four = scaling_of([case_of(1, train_s=80.0), case_of(4, train_s=25.0)], work="strong")
    assert four.training_only
    assert four.efficiency == pytest.approx(0.8)
    assert four.losses == pytest.approx({"compute": 0.2})


def test_every_second_lost_has_its_cause() -> None:
    # On 4 ranks 25 s were ideal. Loading has not shrunk (7.5 s lost), the broadcast is new (1 s), training is 28 s instead
    # of 20: 3 s of gradients, 2 s of waiting and 3 s of slower steps; the rest (10 s alone) is 4 s instead of 2.5.
    base = run(1, load=10.0, train=80.0, exposed=0.0, wait=0.0, broadcast_s=0.0, build_s=10.0)
    four = run(4, load=10.0, train=28.0, exposed=5.0, wait=2.0, broadcast_s=1.0, build_s=4.0)
    found = against(base, four, work="strong")
    assert found is not None
    assert (found.speedup, found.efficiency) == pytest.approx((100 / 43, 25 / 43))
    expected = {"load": 7.5, "broadcast": 1, "allreduce": 3, "straggler": 2, "compute": 3, "other": 1.5}
    assert {cause: share * 43 for cause, share in found.losses.items()} == pytest.approx(expected)


def test_weak_scaling_keeps_the_time_and_grows_the_work() -> None:
    # The 2019 paper's NT3 with 8 epochs a GPU: seconds an epoch on 1 and on 3,072 GPUs.
    found = against(case_of(1, total_s=10.30), case_of(3072, total_s=33.09), work="weak")
    assert found is not None
    assert found.efficiency == pytest.approx(0.3113, abs=1e-4)
    assert found.speedup == pytest.approx(3072 * 10.30 / 33.09)
    assert found.losses == pytest.approx({"rest": 1 - found.efficiency}), "what is not known is no cause"


def test_batches_are_compared_at_the_same_ranks() -> None:
    found = against(case_of(2, total_s=60.0), case_of(2, total_s=40.0), work="same")
    assert found is not None
    assert (found.speedup, found.efficiency) == pytest.approx((1.5, 1.5))


def test_nothing_is_made_of_an_unknown_total() -> None:
    assert against(case_of(1, total_s=100.0), case_of(2, total_s=None), work="strong") is None
    assert against(case_of(1), case_of(2, total_s=50.0), work="strong") is None


def test_it_needs_no_framework_and_no_mpi() -> None:
    code = "import sys, farandole.results.scaling; print([m for m in ('torch', 'keras', 'mpi4py') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "[]\n"


def test_training_is_told_beside_the_whole() -> None:
    """Of 13 s, one is trained: the rest takes as long on any number of ranks."""
    _, two = scaling_of([run(1, load=12.0, train=1.0), run(2, load=12.0, train=0.5)], work="strong")
    assert (two.efficiency, two.training_efficiency) == pytest.approx((6.5 / 12.5, 1.0))
    assert scaling_of([case_of(1, total_s=2.0), case_of(2, total_s=1.0)], work="strong")[1].training_efficiency is None
