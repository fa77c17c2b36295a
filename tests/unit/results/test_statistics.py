"""When two samples differ: the interval, and how often it is wrong where they do not."""

import random

import pytest

from farandole.results.statistics import compare, quantile_t


@pytest.mark.parametrize(
    ("share", "freedom", "expected"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 4, 2.7764), (0.975, 30, 2.0423), (0.9995, 4, 8.6103), (0.95, 2.5, 2.5582), (0.975, 1e6, 1.95997)],
)
def test_quantiles_are_those_of_tables(share: float, freedom: float, expected: float) -> None:
    assert quantile_t(share, freedom) == pytest.approx(expected, rel=2e-4)


def test_the_interval_is_welch_s_on_logarithms() -> None:
    """By hand: logs differ by ln 2, each side has variance 0.01 over 3; t of 4 degrees of freedom is 2.7764."""
    before = [2.718281828 ** (at * 0.1) for at in (-1, 0, 1)]
    found = compare(before, [2 * value for value in before])
    assert found is not None and found.low is not None and found.high is not None
    half = 2.7764 * (2 * 0.01 / 3) ** 0.5
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2 * 2.71828**-half, 2 * 2.71828**half), rel=1e-4)


def test_accuracies_are_subtracted() -> None:
    found = compare([0.9, 0.92], [0.8, 0.82], ratio=False)
    assert found is not None and found.value == pytest.approx(-0.1) and found.claimed


@pytest.mark.parametrize(("before", "after"), [([], [1.0]), ([1.0], []), ([1.0, 0.0], [1.0, 2.0]), ([1.0, 2.0], [-1.0, 2.0])])
def test_nothing_is_made_of_what_has_no_ratio(before: list[float], after: list[float]) -> None:
    assert compare(before, after) is None


def test_one_value_tells_nothing_of_how_far_values_vary() -> None:
    for sides in (([1.0], [100.0]), ([1.0], [100.0, 100.1]), ([1.0, 1.1], [100.0])):
        found = compare(*sides)
        assert found is not None and not found.known and not found.claimed


def test_equal_values_tell_nothing_of_how_far_they_vary() -> None:
    """Accuracies of few samples repeat by chance."""
    found = compare([0.94, 0.94], [0.93, 0.93], ratio=False)
    assert found is not None and not found.known and not found.claimed


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_at_most_5_percent_of_claims_on_equal_samples_are_false(repeats: int) -> None:
    source = random.Random(repeats)

    def sample(middle: float) -> list[float]:
        return [middle * source.gauss(1.0, 0.05) for _ in range(repeats)]

    equal = [compare(sample(20.0), sample(20.0)) for _ in range(600)]
    assert sum(one is not None and one.claimed for one in equal) / 600 <= 0.065, "5%, as far as 600 tell it"
    apart = [compare(sample(20.0), sample(26.0)) for _ in range(100)]
    assert sum(one is not None and one.claimed for one in apart) >= {2: 20, 3: 75, 5: 99}[repeats]


def test_one_of_many_comparisons_needs_a_wider_interval() -> None:
    one, many = (compare([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], among=among) for among in (1, 100))
    assert one is not None and many is not None and one.low is not None and many.low is not None
    assert many.low < one.low and one.claimed
