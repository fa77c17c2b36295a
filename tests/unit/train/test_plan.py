"""How ranks share a training: epochs, steps, batches, rates and orders."""

from typing import Any

import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.train.plan import Plan, advice, make_plan
from farandole.train.rank.orders import orders
from farandole.train.settings import RunSettings

ROWS = 1120


def settings(benchmark: str = "nt3", **given: Any) -> RunSettings:
    return RunSettings.from_flat({"benchmark": benchmark, "preset": "paper", "make_data": True, **given})


def plan(size: int, rows: int = ROWS, **given: Any) -> Plan:
    return make_plan(settings(**given), rows, size)


def test_the_papers_division_of_epochs() -> None:
    found = plan(48)
    assert (found.epochs, found.steps, found.local_batch) == (8, 56, 20)
    assert found.rate == pytest.approx(0.048)
    assert found.samples_per_epoch == 48 * ROWS


def test_weak_scaling_leaves_every_rank_its_epochs() -> None:
    assert plan(5, work="weak").epochs == 384
    assert plan(5, work="weak", parallel="steps").epochs == 5 * 384


def test_steps_of_an_epoch_are_divided() -> None:
    found = plan(4, parallel="steps")
    assert (found.epochs, found.steps, found.global_batch, found.samples_per_epoch) == (384, 14, 80, ROWS)


@pytest.mark.parametrize(("rule", "batch"), [("linear", 4800), ("sqrt", 692), ("cbrt", 363), ("none", 100)])
def test_the_papers_batches_of_p1b3(rule: str, batch: int) -> None:
    found = make_plan(settings("p1b3", batch_scaling=rule, parallel="epochs", work="weak"), 900_100, 48)
    assert (found.local_batch, found.epochs) == (batch, 1)


@pytest.mark.parametrize(
    ("size", "given", "told"),
    [
        (5, {}, "384 epochs do not divide over 5 ranks .* Use 380 or 385"),
        (400, {}, "Use 400"),
        (
            4,
            {"parallel": "steps", "batch_size": 300},
            "1120 training samples over 4 ranks is 280 each.* works is 280",
        ),
        (2, {"batch_size": 2000}, "largest batch that works is 1120"),
        (8, {"batch_scaling": "linear", "batch_size": 200}, "linear for 8 ranks.* does not fit"),
        (2000, {"parallel": "steps"}, "Use at most 1120 ranks"),
        (3, {"emulate_ranks": 8}, "Use 6 or 9"),
        (3, {"parallel": "steps", "batch_size": 1}, "1120 training samples do not give 3 ranks 374 batches of 1.* 2 or more"),
        (2, {"shuffle": False}, "the same batches in the same order"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_what_can(size: int, given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        plan(size, **given)


def test_too_few_epochs_a_rank_are_pointed_out() -> None:
    assert advice(settings(), plan(48)) == []
    assert "at most 48 ranks" in advice(settings(), plan(96))[0]
    hundred = settings(epochs=100)
    (told,) = advice(hundred, make_plan(hundred, ROWS, 20))
    assert "at most 10 ranks" in told, "12 do not divide 100 epochs"
    weak = settings(work="weak", epochs=2)
    assert advice(weak, make_plan(weak, ROWS, 4))[0].endswith("accuracy. Use more epochs."), "fewer ranks would do as few"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"warmup_epochs": 1}, []),
        ({"warmup_epochs": 1, "lr_scaling": "none"}, ["warmup_epochs=1 has no effect: the rate is that of one rank"]),
        ({"warmup_epochs": 9}, ["warmup_epochs=9: a rank has 8 epochs, in which the rate does not reach 0.048"]),
    ],
)
def test_a_warm_up_that_does_nothing_is_pointed_out(given: dict[str, Any], told: list[str]) -> None:
    found = advice(settings(**given), plan(48, **given))
    assert len(found) == len(told) and all(text.startswith(start) for text, start in zip(found, told))


def epoch(found: Plan, rank: int, number: int = 0, shuffle: bool = True) -> list[Any]:
    return orders(found, ROWS, number, seed=1, shuffle=shuffle, rank=rank)


def test_with_epochs_divided_every_rank_has_all_the_data_in_an_order_of_its_own() -> None:
    found = plan(3)
    firsts = []
    for rank in range(3):
        batches = epoch(found, rank)
        assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(ROWS))
        firsts += [tuple(batches[0]), tuple(epoch(found, rank, 1)[0])]
    assert len(set(firsts)) == 6


def test_with_steps_divided_the_ranks_share_the_data() -> None:
    found = plan(3, parallel="steps")
    parts = [epoch(found, rank) for rank in range(3)]
    assert [len(part) for part in parts] == [found.steps] * 3
    every = np.concatenate([batch for part in parts for batch in part])
    assert np.array_equal(np.sort(every), np.arange(ROWS))


def test_fewer_steps_when_asked_for() -> None:
    found = plan(2, train_steps=3)
    assert found.steps == 3 and len(epoch(found, 0)) == 3 and found.samples_per_epoch == 120
