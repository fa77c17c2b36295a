"""Traces as pictures: phases within phases, gaps in what is known, thousands of ranks."""

import re
import time
from pathlib import Path

import pytest

from farandole.observe.analysis import analyse
from farandole.report.figures.heat import heat_figure
from farandole.report.figures.timeline import timeline_figure
from farandole.report.traces import Trace
from studyfolder import record_timeline


def band(name: str, start_s: float, end_s: float, rank: int = 0) -> dict[str, object]:
    return {"rank": rank, "name": name, "start_s": start_s, "end_s": end_s}


ENTRY = re.compile(r'<g class="([\w-]+)"><(?:rect|path)[^>]*/><text[^>]*class="entry">([^<]*)<')
"""Of a legend: the colour's class and the words."""


def drawn(beside: Trace | None = None, **found: object) -> str:
    figure = timeline_figure(Trace(**found), "it was not sampled", beside)  # type: ignore[arg-type]
    assert figure.draw is not None
    return figure.caption + figure.draw(1000.0)


def test_a_phase_stands_still_while_one_inside_it_runs() -> None:
    text = drawn(bands=[band("preprocess", 0, 10), band("load", 2, 8), band("train", 10, 20), band("load", 0, 3, rank=1)])
    assert text.count('class="fill p-preprocess"') == 2
    assert "rank 0: preprocessing\n2.00\u202fs, from 0 to 2.00 s" in text
    assert "rank 0: preprocessing\n2.00\u202fs, from 8.00 to 10.0 s" in text
    assert "rank 0: loading\n6.00\u202fs" in text
    assert "rank 1: loading\n3.00\u202fs" in text


def test_phases_that_a_script_has_named_have_colours_too() -> None:
    names = ("read", "warm up", "solve", "check")
    text = drawn(bands=[band(name, at, at + 1) for at, name in enumerate(names)])
    kinds = ENTRY.findall(text)
    assert [name for _, name in kinds] == [*names] and len({kind for kind, _ in kinds}) == 4
    assert "s2" not in dict(kinds), "which waits for allreduce look like"


def test_a_gap_in_the_power_is_a_gap_in_the_line() -> None:
    power = {"node": "n1", "t_s": [0.0, 1.0, 2.0, 3.0, 4.0], "w": [90.0, 91.0, None, 92.0, 93.0], "provenance": "modelled"}
    text = drawn(power=[power])
    line = next(path for path in text.split("<path") if "modelled</title>" in path)
    assert line.split(' d="')[1].split('"')[0].count("M") == 2
    assert "watts (modelled)" in text


def test_the_lanes_say_which_collective_is_waited_for() -> None:
    sent = [{"rank": 1, "name": name, "start_s": at, "end_s": at + 1.0} for at, name in enumerate(("BROADCAST", "ALLREDUCE", "JOIN"))]
    text = drawn(communication=sent)
    for words in ("broadcast", "allreduce", "other collectives"):
        assert f"<title>rank 1 waits for {words}</title>" in text
        assert f"training waits for {words}" in [entry for _, entry in ENTRY.findall(text)]


def test_of_many_ranks_those_are_drawn_whose_waits_were_looked_at(tmp_path: Path) -> None:
    record_timeline(tmp_path / "t.json", ranks=100, steps=4)
    found = analyse(tmp_path / "t.json")
    text = drawn(**{name: value for name, value in found.items() if name in ("bands", "communication", "communication_ranks")})
    lanes = text.split(">communication<")[1]
    shown = re.findall(r">rank (\d+)</text>", lanes)
    assert len(shown) == 8 and (shown[0], shown[-1]) == ("0", "99")
    assert sorted(set(re.findall(r"rank (\d+) waits for allreduce", lanes))) == sorted(shown)


def curve(node: str, watts: float, **parts: float) -> dict[str, object]:
    def over_time(level: float) -> dict[str, object]:
        return {"t_s": [0.0, 1.0, 2.0], "w": [level] * 3, "provenance": "measured-component"}

    return {"node": node, **over_time(watts), "parts": [{"part": name, **over_time(level)} for name, level in parts.items()]}


def test_parts_of_a_node_have_lines_of_their_own_while_there_are_colours() -> None:
    text = drawn(power=[curve("n1", 90.0, cpu=70.0, memory=20.0), curve("n2", 95.0, cpu=75.0, memory=20.0)])
    assert [words for _, words in ENTRY.findall(text)] == ["power of n1", "power of n2", "CPU of n1", "memory of n1"]
    assert "<title>CPU of n1\n70.0 to 70.0 W, measured component</title>" in text
    many = drawn(power=[curve(f"n{node}", 90.0, cpu=70.0, memory=20.0) for node in range(4)])
    assert "power of n3" in many and "CPU" not in many


@pytest.mark.parametrize(
    ("other_s", "shown_s", "told"),
    [(20.0, 20.0, "On one scale with the other"), (4.0, 10.0, "On one scale with the other"), (50.0, 10.0, "Not on one scale with the other, which took 50.0")],
)
def test_two_runs_are_on_one_scale_unless_one_would_be_too_small(other_s: float, shown_s: float, told: str) -> None:
    text = drawn(Trace(bands=[band("train", 0, other_s)], power=[curve("n1", 90.0)]), bands=[band("train", 0, 10)], power=[curve("n1", 180.0)])
    assert re.search(r'data-time="\S+ \S+ ([^"]*)"', text)[1] == f"{shown_s:g}"  # type: ignore[index]
    assert told in text


def test_watts_of_two_runs_are_on_one_scale(tmp_path: Path) -> None:
    high, low = Trace(power=[curve("n1", 190.0)]), Trace(power=[curve("n1", 90.0)])
    for text in (drawn(high, power=low.power), drawn(low, power=high.power)):
        assert ">200</text>" in text


def test_lanes_end_with_their_run() -> None:
    """On the scale of a longer one, it would look as if it went on without waiting."""
    sent = [band("ALLREDUCE", 1, 2)]
    widths = [
        float(re.search(r'width="([^"]*)" height="12" class="lane"', drawn(beside, communication=sent, bands=[band("train", 0, 10)]))[1])  # type: ignore[index]
        for beside in (None, Trace(bands=[band("train", 0, 20)]))
    ]
    assert widths[1] == pytest.approx(widths[0] / 2, abs=0.1)


def test_phases_of_two_runs_have_the_same_colours() -> None:
    """Also where a script has named them itself, and one run lacks some."""
    longer = Trace(bands=[band("read", 0, 1), band("warm up", 1, 2), band("solve", 2, 5)])
    shorter = Trace(bands=[band("read", 0, 1), band("solve", 1, 4)])
    first, second = (ENTRY.findall(text) for text in (drawn(shorter, bands=longer.bands), drawn(longer, bands=shorter.bands)))
    assert len(first) == len({kind for kind, _ in first}) == 3
    assert len(second) == 2 and {*second} < {*first}


def heat(**found: object) -> tuple[str, str]:
    figure = heat_figure(Trace(ranks=[{"rank": rank, **{name: row[rank] for name, row in found.items()}} for rank in range(4)]))  # type: ignore[index]
    assert figure.draw is not None
    return figure.draw(1000.0), figure.caption


def darkest(text: str) -> set[str]:
    return {line for path in text.split("<path") if 'class="cell h8"' in path for line in path.split(' d="')[1].split('"')[0].split("M")[1:]}


def test_the_late_rank_is_dark_although_all_steps_end_together() -> None:
    steps = [[0.1] * 50] * 4
    text, caption = heat(steps=steps, step_wait_s=[[0.04] * 50, [0.04] * 50, [0.0] * 50, [0.04] * 50])
    assert darkest(text) == {"0 2h50"}
    assert "without its wait for slower ranks, against the median of all, 60.0\u202fms." in caption
    assert "dark" not in caption, "on a dark screen, what is slow is light"


def test_an_entry_of_several_steps_is_as_wide_as_they_are() -> None:
    text, caption = heat(steps=[[0.1, 0.1, 0.5, 0.1]] * 4, step_counts=[[1, 50, 4, 5]] * 4)
    assert ", 60 steps. A row" in caption
    assert darkest(text) == {f"51 {rank}h4" for rank in range(4)}
    assert ">60</text>" in text


def test_slow_steps_are_dark_columns_and_a_first_one_that_compiles_hides_nothing() -> None:
    row = [30.0] + [0.1 + 0.002 * (at % 3) for at in range(49)]
    row[30] = 0.15
    text, caption = heat(steps=[row] * 4)
    assert darkest(text) == {f"{at} {rank}h1" for at in (0, 30) for rank in range(4)}
    assert "the time of a step against the median" in caption
    assert "1.25× and more" in text


def run_of(step_s: float) -> Trace:
    """Four ranks, of which the last is 1.2 times as slow."""
    return Trace(ranks=[{"rank": rank, "steps": [step_s * (1.2 if rank == 3 else 1.0)] * 50} for rank in range(4)])


def shades(own: Trace, other: Trace) -> tuple[str, dict[str, str], list[str]]:
    """The caption, the colour of each row and the words of the scale."""
    figure = heat_figure(own, other)
    assert figure.draw is not None
    text = figure.draw(1000.0)
    rows = {row: kind for path, kind in re.findall(r'd="([^"]*)" class="cell (h\d)"', text) for row in re.findall(r"M0 (\d)h50", path)}
    return figure.caption, rows, re.findall(r">([^<]*(?: or less| and more))<", text)


def test_compared_runs_share_one_scale() -> None:
    quick, slow = run_of(0.1), run_of(0.12)
    caption, rows, words = shades(quick, slow)
    slow_caption, slow_rows, slow_words = shades(slow, quick)
    assert words == slow_words == ["100\u202fms or less", "150\u202fms and more"]
    assert rows == {"0": "h0", "1": "h0", "2": "h0", "3": "h3"}
    assert slow_rows["0"] == rows["3"], "120 ms has one colour on both"
    assert "colours compare" in caption and "colours compare" in slow_caption


def test_runs_with_steps_of_other_lengths_share_a_scale_of_ratios() -> None:
    quick, slow = run_of(0.01), run_of(0.1)
    assert shades(quick, slow)[1:] == shades(slow, quick)[1:]
    assert "On one scale of ratios with the other run, whose median is 100\u202fms." in shades(quick, slow)[0]


def test_without_a_trace_the_reason_is_given() -> None:
    figure = timeline_figure(Trace(reason="No run has left a trace."), "")
    assert (figure.draw, figure.reason) == (None, "No run has left a trace.")


def test_1536_ranks_are_drawn_in_little_time_and_text() -> None:
    ranks = range(1536)
    trace = Trace(
        ranks=[{"rank": rank, "steps": [0.1 + 0.001 * ((rank * step) % 7) for step in range(120)]} for rank in ranks],
        bands=[band(name, 10.0 * at, 10.0 * at + 9, rank) for rank in ranks for at, name in enumerate(("load", "train", "save"))],
        communication=[{"rank": rank, "start_s": 10.0 + at, "end_s": 10.5 + at} for rank in ranks for at in range(8)],
        power=[{"node": f"n{node}", "t_s": [0.0, 15.0, 30.0], "w": [90.0, 180.0, 95.0]} for node in range(256)],
    )
    start = time.process_time()
    heat, timeline = heat_figure(trace), timeline_figure(trace, "")
    assert heat.draw and timeline.draw
    text = heat.draw(1120.0) + timeline.draw(1120.0)
    assert time.process_time() - start < 3
    assert len(text) < 400_000
    assert "the slowest of 24 neighbours" in heat.caption
    assert ">rank 1535</text>" in text
