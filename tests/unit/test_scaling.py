"""How the learning rate and the batch follow the number of ranks."""

import pytest

from farandole.errors import SettingsError
from farandole.optim.scaling import scaled_batch, scaled_rate, warmup_factor


def test_rules():
    assert scaled_rate(0.01, 8) == pytest.approx(0.08)
    assert scaled_rate(0.01, 9, "sqrt") == pytest.approx(0.03)
    assert scaled_rate(0.01, 27, "cbrt") == pytest.approx(0.03)
    assert scaled_rate(0.01, 64, "none") == 0.01
    assert all(scaled_rate(0.3, 1, rule) == 0.3 for rule in ("linear", "sqrt", "cbrt", "none"))
    assert scaled_batch(20, 4) == 80
    assert scaled_batch(20, 16, "cbrt") == 50
    assert scaled_batch(100, 2, "cbrt") == 125  # of 125.99: the papers cut off
    assert scaled_batch(100, 27, "cbrt") == 300


def test_warm_up_starts_at_the_rate_of_one_rank_and_ends_at_the_scaled_one():
    assert warmup_factor(0, 100, ranks=4) == 0.25
    assert warmup_factor(50, 100, ranks=4) == pytest.approx(0.625)
    assert warmup_factor(100, 100, ranks=4) == warmup_factor(10**6, 100, ranks=4) == 1.0
    assert warmup_factor(0, 0, ranks=4) == 1.0
    for rule in ("linear", "sqrt", "cbrt", "none"):
        assert scaled_rate(0.1, 4, rule) * warmup_factor(0, 100, 4, rule) == pytest.approx(0.1)
    rates = [warmup_factor(step, 10, ranks=8) for step in range(12)]
    assert rates == sorted(rates)


def test_what_cannot_work_is_refused():
    with pytest.raises(SettingsError, match="unknown scaling rule 'log'; known: linear, sqrt, cbrt, none"):
        scaled_rate(0.1, 2, "log")
    with pytest.raises(SettingsError, match="ranks=0: must be 1 or more"):
        scaled_batch(10, 0)
