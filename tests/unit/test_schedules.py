"""Rates over the course of training, and the papers' division of epochs."""

import pytest

from farandole.errors import SettingsError
from farandole.optim import (
    comp_epochs,
    cosine_decay,
    equal_epochs,
    linear_warmup,
    poly_decay,
    step_decay,
    warmed_up,
)


def test_schedules_begin_at_one_and_end_where_they_should():
    assert poly_decay(0, 100) == cosine_decay(0, 100) == step_decay(0, [30, 60]) == 1.0
    assert poly_decay(50, 100) == 0.25
    assert poly_decay(99, 100, floor=0.01) == 0.01
    assert poly_decay(10**6, 100) == 0.0
    assert cosine_decay(50, 100, floor=0.2) == pytest.approx(0.6)
    assert cosine_decay(200, 100, floor=0.2) == pytest.approx(0.2)
    assert [round(step_decay(s, [30, 60]), 6) for s in (29, 30, 59, 60)] == [1.0, 0.1, 0.1, 0.01]
    assert [linear_warmup(s, 10, start=0.5) for s in (0, 5, 10, 11)] == [0.5, 0.75, 1.0, 1.0]
    assert [warmed_up(s, 10, ranks=4, then=0.5) for s in (0, 10)] == [0.25, 0.5]


def test_schedules_that_cannot_work_are_refused():
    with pytest.raises(SettingsError, match="total_steps=0"):
        poly_decay(1, 0)
    with pytest.raises(SettingsError, match="increasing order"):
        step_decay(1, [60, 30])


def test_epochs_as_published():
    assert [comp_epochs(10, rank, 4) for rank in range(4)] == [2, 2, 2, 4]
    assert [comp_epochs(384, rank, 3) for rank in range(3)] == [128, 128, 128]
    assert comp_epochs(7) == 7


def test_ranks_get_equal_epochs_or_an_error_that_says_what_to_type():
    assert equal_epochs(384, 96) == 4
    with pytest.raises(SettingsError, match=r"10 epochs do not divide over 4 ranks \(10 % 4 = 2\).*Use 8 or 12"):
        equal_epochs(10, 4)
    with pytest.raises(SettingsError, match="Use 4"):
        equal_epochs(3, 4)
