"""What lines, axes and points of figures say, read from the page that has them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farandole.report import write_report
from studyfolder import Shape, changed, make_study


def figures_of(folder: Path) -> dict[str, str]:
    """The markup of each figure, as wide as on a desk."""
    parts = write_report(folder).read_text().split('<figure id="figure-')[1:]
    return {part.split('"')[0]: part.split("</figure>")[0].split('class="narrow')[0] for part in parts}


def lines_of(folder: Path, **settings: Sequence[Any]) -> dict[str, int]:
    """How many lines the figures of a study on 1, 2 and 4 ranks have, the ideal left out."""
    make_study(folder, Shape(ranks=(1, 2, 4), repeats=1, trace=False, power="measured"))
    ranks = (1, 2, 4)
    changed(folder, lambda line: line["settings"].update({name: values[ranks.index(line["settings"]["ranks"])] for name, values in settings.items()}))
    drawn = figures_of(folder)
    return {name: len(re.findall('class="line (?!dashed)', drawn[name])) for name in ("time", "energy", "accuracy")}


def test_a_line_joins_what_differs_along_the_axis_alone(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "plain") == {"time": 3, "energy": 1, "accuracy": 1}
    assert lines_of(tmp_path / "follows", global_batch=(20, 40, 80), nodes=(1, 1, 2)) == {"time": 3, "energy": 1, "accuracy": 1}
    assert lines_of(tmp_path / "words", loader=("pandas", "fast", "chunked")) == {"time": 0, "energy": 0, "accuracy": 0}
    assert lines_of(tmp_path / "part", loader=("pandas", "fast", "fast")) == {"time": 3, "energy": 1, "accuracy": 1}


def test_times_on_as_many_ranks_of_more_nodes_are_no_line(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2, 4, 8), repeats=1, trace=False))
    apart = {1: (1, 1), 2: (2, 1), 4: (1, 2), 8: (2, 2)}
    changed(tmp_path, lambda line: line["settings"].update(zip(("ranks", "nodes", "rate"), (*apart[line["settings"]["ranks"]], 0.001))))
    paths = re.findall(r'<path d="([^"]*)" class="line', figures_of(tmp_path)["accuracy"])
    lines = [re.findall(r"[ML]([\d.]+) ", path) for path in paths]
    assert len(lines) == 2 and lines[0] == lines[1], "one for each number of nodes, over the same ranks"


def test_rates_are_not_joined_in_the_order_of_their_energy(tmp_path: Path) -> None:
    energy = figures_of(make_study(tmp_path, Shape(kind="lr", ranks=(4,), rates=(0.001, 0.002, 0.004), repeats=1, trace=False)))["energy"]
    assert energy.count('class="dot') == 3 and 'class="line' not in energy


def test_a_logarithmic_axis_says_so(tmp_path: Path) -> None:
    drawn = figures_of(make_study(tmp_path, Shape(ranks=(1, 2, 4), repeats=1, trace=False)))
    names = {name: set(re.findall(r'class="axis-name[^"]*">([^<]*)<', figure)) for name, figure in drawn.items()}
    assert {name: names[name] for name in ("time", "energy", "accuracy", "efficiency")} == {
        "time": {"seconds, log scale", "ranks, log scale"},
        "energy": {"kJ (modelled), log scale", "seconds, log scale"},
        "accuracy": {"test accuracy", "ranks, log scale"},
        "efficiency": {"efficiency", "ranks"},
    }
