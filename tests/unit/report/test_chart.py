"""Ticks, labels and numbers as people read them."""

import re
from itertools import pairwise

import pytest

from farandole.report.chart import Frame, Scale, apart, linear_ticks, log_ticks, svg, text_width, thinned
from farandole.report.markup import Markup, tag
from farandole.report.raster import binned, cells, levels_of, shares
from farandole.results.numbers import number, percent, plain, quantity, seconds


def test_linear_ticks_are_round_and_enclose_the_values() -> None:
    assert linear_ticks(0.0, 9.7) == [0, 2, 4, 6, 8, 10]
    assert linear_ticks(0.912, 0.993, 4) == [0.9, 0.95, 1.0]
    assert linear_ticks(3.0, 3.0)[0] <= 3.0 <= linear_ticks(3.0, 3.0)[-1]


def test_log_ticks_are_few_at_any_range() -> None:
    assert log_ticks(4.0, 220.0) == [5, 10, 20, 50, 100, 200]
    assert log_ticks(1e-6, 1e6)[:2] == [1e-6, 1e-5]
    assert 2 <= len(log_ticks(41.0, 48.0)) <= 8


@pytest.mark.parametrize(("low", "high"), [(10.8, 31.1), (4.0, 27.0), (51.9, 103.9), (25.0, 260.0), (0.9, 5.1), (6.2, 17.0)])
def test_a_logarithmic_axis_can_be_read_off(low: float, high: float) -> None:
    """Two ticks do not show that it is one."""
    assert 3 <= len(log_ticks(low, high)) <= 8


def test_logarithmic_scales_are_even_in_ratios() -> None:
    scale = Scale(low=1, high=16, start=0, end=400, log=True)
    assert [round(scale(value)) for value in (1, 2, 4, 8, 16)] == [0, 100, 200, 300, 400]


def test_labels_keep_apart_within_bounds() -> None:
    placed = apart([10, 11, 12, 95], 0, 100, gap=15)
    assert placed == [10, 25, 40, 95]
    assert apart([99, 98], 0, 100, gap=15) == [100, 85]


def test_tick_labels_that_would_touch_are_left_out() -> None:
    scale = Scale(low=1, high=3072, start=0, end=100, log=True)
    kept = thinned([1, 6, 24, 96, 384, 768, 1536, 3072], scale, plain)
    assert kept[-1] == 3072
    for low, high in pairwise(kept):
        assert scale(high) - scale(low) > (text_width(plain(low)) + text_width(plain(high))) / 2


def test_a_legend_stands_within_the_chart_and_above_it() -> None:
    names = ["loading", "batch size 20, loader pandas-chunked, learning rate 0.001, rule square-root", "evaluation", "training"]
    drawn = svg(Frame(width=342.0, height=100.0), words="", legend=[(f"s{at}", name) for at, name in enumerate(names)])
    texts = [(float(x), float(y), text) for x, y, text in re.findall(r'<text x="([\d.]+)" y="([-\d.]+)" class="entry">([^<]*)<', drawn)]
    assert " ".join(text for _, _, text in texts) == " ".join(names)
    assert all(x + text_width(text) <= 342 and y < 0 for x, y, text in texts)
    assert len({y for _, y, _ in texts}) == 3, "beside each other as far as there is room; the long one on two lines"
    top, height = re.findall(r'viewBox="0 ([-\d.]+) 342 ([\d.]+)"', drawn)[0]
    assert float(top) + float(height) == 100.0 and float(top) < min(y for _, y, _ in texts) - 10


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.999_9, "1.00"), (1234.5, "1,234"), (63.54, "63.5"), (0.001234, "0.00123"), (None, "–"), (float("nan"), "–")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_units() -> None:
    assert [seconds(value).replace("\u202f", " ") for value in (0.0042, 63.54, 7200.0, None)] == ["4.20 ms", "63.5 s", "2.00 h", "–"]
    assert [quantity(value, "J").replace("\u202f", " ") for value in (12_400.0, 0.0, 999.9)] == ["12.4 kJ", "0 J", "1.00 kJ"]
    assert [percent(value) for value in (0.834, 0.0031, 0.0)] == ["83%", "0.31%", "0%"]


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", Markup("<i>"), title='"x"') == '<p title="&quot;x&quot;">&lt;b&gt;<i></p>'


def test_equal_neighbours_become_one_stroke() -> None:
    drawn = cells([["a", "a", None, "b"], ["b", "b", "b", "b"]], x=0, y=0, width=40, height=5)
    assert 'd="M0 0h2"' in drawn
    assert 'd="M3 0h1M0 1h4"' in drawn


def test_levels_and_bins() -> None:
    assert binned([1.0, 3.0, None, None, 5.0], 3) == [2.0, None, 5.0]
    assert levels_of([[0.0, 5.0, 99.0, None]], low=0, high=10, count=4) == [["h0", "h2", "h3", None]]
    assert [round(share.get("x", 0.0), 3) for share in shares([(0.5, 2.25, "x")], end_s=4.0, bins=4)] == [0.5, 1.0, 0.25, 0.0]
