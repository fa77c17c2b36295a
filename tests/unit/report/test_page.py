"""The whole page: every section is there or says why not, and the file needs nothing but itself."""

import csv
import io
import json
import re
import shlex
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from farandole.report import write_page_if_possible, write_report
from farandole.results.analysis import analyse_study, table_text
from farandole.results.runs import command_of
from farandole.study.importing import import_figures
from studyfolder import Shape, changed, large_study, make_loaders, make_run, make_study, record_timeline

OF_A_STUDY = ("time", "efficiency", "energy", "accuracy", "heat", "timeline")
EMPTY = {"meta", "br", "col", "hr"}


class Page(HTMLParser):
    """Text by the id of the element around it; complains of elements that do not nest."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.inside: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(self.source)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in EMPTY:
            self._open.append((tag, dict(attrs).get("id")))
            self.inside.setdefault(self._open[-1][1] or "", "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, name in self._open:
            if name:
                self.inside[name] += data

    def drawn(self, name: str) -> bool:
        return "<svg" in self.source.split(f'id="figure-{name}"')[1].split("</figure>")[0]


def test_a_study_has_every_figure_and_its_data(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(failures=((4, 1), (16, 0)), cores=64))
    page = Page(write_report(folder))
    assert [name for name in OF_A_STUDY if not page.drawn(name)] == []
    assert "modelled" in page.inside["figure-energy"]
    assert "modelled" in page.inside["figure-timeline"]
    data = json.loads(page.inside["data"])
    assert len(data["results"]) == 15
    assert [name for rank in data["trace"]["ranks"] for name, value in rank.items() if isinstance(value, list)] == [], "a number a step"
    assert data["about"]["git"]["commit"] in page.source
    assert 'data-text="farandole study strong nt3 --ranks 1,2,4,8,16 --repeats 3"' in page.source
    assert "energyJ, modelled" in page.inside["results"]
    assert not re.search(r"(src|href|url)\s*[=(]", page.source)
    assert "http" not in re.sub(r"farandole|https?://www.w3.org/\S+", "", page.source)


def test_a_model_far_below_a_mean_leaves_room_for_the_others(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(trace=False))
    changed(folder, lambda line: line["figures"].update(metric="r2", test_accuracy=-16.0 if line["settings"]["ranks"] == 16 else 0.5))
    figure = Page(write_report(tmp_path)).inside["figure-accuracy"]
    assert "What is below -1 is drawn there" in figure
    assert "test r2 -16" in figure, "what pointing at it tells"
    ticks = [float(text) for text in re.findall(r"-?\d\.\d", figure)]
    assert min(ticks) == -1.0


def test_what_is_missing_says_why(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path, Shape(power="none", accuracy=False, trace=False, repeats=1))))
    assert [name for name in OF_A_STUDY if page.drawn(name)] == ["time", "efficiency"]
    assert "no sensor was found" in page.inside["figure-energy"]
    assert "which reports no accuracy" in page.inside["figure-accuracy"]
    assert "timeline.json" in page.inside["figure-heat"]
    assert "timeline.json" in page.inside["figure-timeline"]


def test_the_traced_run_is_named_by_what_tells_it_from_others(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path, Shape(ranks=(1, 2), batch_sizes=(10, 20), repeats=1))))
    assert re.search(r"The run on 2 ranks \(batch size (10|20)\), ", page.inside["figure-heat"])


def test_a_trace_without_power_is_drawn_and_says_so(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path, Shape(power="none", ranks=(1, 2), repeats=1))))
    assert page.drawn("timeline")
    assert "No power: no sensor was found" in page.inside["figure-timeline"]


def test_a_trace_that_cannot_be_read_is_a_reason_too(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(ranks=(1, 2), repeats=1))
    for path in folder.rglob("timeline.json"):
        path.write_text("{")
    assert "cannot be read" in Page(write_report(folder)).inside["figure-heat"]


def test_a_trace_that_is_not_whole_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", "0.02")
    folder = make_run(tmp_path, ranks=2, trace=False)
    record_timeline(folder / "timeline.json", ranks=2, steps=300)
    page = Page(write_report(folder))
    assert re.search(r"recording was cut on ranks 0, 1: [\d,]+ events are lost \(", page.source)
    assert "<dd>not whole</dd>" in page.source


def test_a_condensed_trace_is_told(tmp_path: Path) -> None:
    folder = make_run(tmp_path, ranks=2, trace=False)
    record_timeline(folder / "timeline.json", ranks=2, steps=200, limit_bytes=60_000)
    page = Page(write_report(folder))
    assert "The run on 2 ranks, 200 steps (condensed: some as means of several)." in page.inside["figure-heat"]
    assert "The trace is condensed: " in page.inside["figure-timeline"]
    assert "steps are whole, all others summed up" in page.source.split('class="trust"')[1].split("</dl>")[0]


def test_a_study_without_results_is_a_page(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False))
    (folder / "results.jsonl").write_text("")
    page = Page(write_report(folder))
    assert "No run has finished." in page.source
    assert not [name for name in OF_A_STUDY if page.drawn(name)]


def test_two_studies_are_compared(tmp_path: Path) -> None:
    shape = {"ranks": (1, 2, 4), "repeats": 1, "trace": False}
    before = make_study(tmp_path / "a", Shape(loaders=("pandas",), **shape))  # type: ignore[arg-type]
    after = make_study(tmp_path / "b", Shape(loaders=("fast",), **shape))  # type: ignore[arg-type]
    page = Page(write_report(before, after))
    assert page.drawn("compare")
    assert page.drawn("compare-time")
    assert not page.drawn("compare-energy")
    assert "no evidence of a saving" in page.inside["figure-compare-energy"]
    assert "4 ranks" in page.inside["figure-compare"]
    assert "modelled: not compared" in page.inside["comparison"]
    assert "<li>Before, pandas: 2" in page.source and "<li>After, fast: 2" in page.source, "seconds, of which nothing is claimed"
    assert len(json.loads(page.inside["data"])["compared_with"]["results"]) == 3
    assert f'data-text="farandole report {before} {after}"' in page.source


def test_both_studies_say_how_they_were_made_and_what_they_took(tmp_path: Path) -> None:
    before = make_study(tmp_path / "a", Shape(ranks=(1, 2), loaders=("pandas",), repeats=1, trace=False))
    after = make_study(tmp_path / "b", Shape(ranks=(1, 2), repeats=2, trace=False))
    page = Page(write_report(before, after))
    for shown in ("Before: a</p><dl", "After: b</p><dl", 'data-text="farandole study strong nt3 --ranks 1,2 --repeats 1"'):
        assert shown in page.source
    assert page.source.count('data-text="farandole study strong nt3 --ranks 1,2 --repeats 2"') == 1
    assert page.source.count("<dt>processor</dt>") == 2
    table = page.source.split('id="comparison"')[1].split("</table>")[0]
    headings = re.findall('data-name="([^"]*)"', table)
    assert len(headings) == len(set(headings)) and "energy, after, modelled [J]" in headings and "load, change" in headings
    assert table.count(">~") == 8, "watts and joules of both sides, modelled"
    assert "1 → 2" in table and "Medians of 1 to 2 runs a case." in page.inside["comparison-note"]
    for side, name in (("before", "a"), ("after", "b")):
        assert f"<h2>All configurations {side}, {name}</h2>" in page.source
    assert "Base case: 1 rank, rate=0.001, 2" in page.inside["results-note"] and "Medians of 2 runs a case." in page.inside["results-after-note"]


def test_each_side_of_a_comparison_has_its_own_figures_and_verdict(tmp_path: Path) -> None:
    before = make_study(tmp_path / "a", Shape(ranks=(1, 2, 4), loaders=("pandas",), repeats=1, trace=False))
    after = make_study(tmp_path / "b", Shape(ranks=(1, 2), repeats=1, trace=False))
    page = Page(write_report(before, after))
    own = [name for name in ("time", "efficiency", "accuracy") if page.drawn(name)]
    assert own == [name for name in ("time", "efficiency", "accuracy") if page.drawn(f"{name}-after")] and len(own) == 3
    at = [page.source.index(part) for part in (">Before: pandas</h2>", 'id="figure-time"', ">After: fast</h2>", 'id="figure-time-after"')]
    assert at == sorted(at)
    assert "4 ranks" in page.inside["figure-efficiency"] and "4 ranks" not in page.inside["figure-efficiency-after"]
    assert "<li>Before, pandas: " in page.source and "<li>After, fast: " in page.source
    names = re.findall(r' id="([^"]*)"', page.source)
    assert len(names) == len(set(names))


def test_imported_figures_are_not_said_to_be_of_one_run(tmp_path: Path) -> None:
    folder = import_figures("summit-2019-table2", tmp_path / "theirs", None).path
    page = Page(write_report(folder))
    assert "As imported." in page.inside["results-note"]
    assert "run once" not in page.source and "One run each" not in page.source


def titles(page: Page, name: str) -> list[str]:
    """Of a kind of figure, as often as it is there."""
    return [page.source.split(f'id="{found}"')[1].split("<h2>")[1].split("</h2>")[0] for found in page.inside if found.startswith(f"figure-{name}")]


def test_both_sides_have_their_steps_and_their_power_over_time(tmp_path: Path) -> None:
    before = make_study(tmp_path / "a", Shape(ranks=(1, 2), loaders=("pandas",), repeats=1))
    after = make_study(tmp_path / "b", Shape(ranks=(1, 2), repeats=1))
    page = Page(write_report(before, after))
    for name in ("heat", "heat-after", "timeline", "timeline-after"):
        assert page.drawn(name), name
    assert titles(page, "heat") == ["Steps of every rank: before, pandas", "Steps of every rank: after, fast"]
    assert titles(page, "timeline")[1] == "Power over time, phases and communication: after, fast"
    assert page.source.index('id="figure-timeline-after"') < page.source.index(">Before: pandas</h2>") < page.source.index('id="figure-time"')
    (title,) = re.findall("<h2>(Components [^<]*)</h2>", page.source)
    assert title == "Components of the runs on 2 ranks before and 2 ranks after, as a profiler lists them"
    table = page.source.split('id="components"')[1].split("</table>")[0]
    assert re.findall('data-name="([^"]*)"', table)[:5] == [
        "component", "calls, before", "time, before [s]", "of it by itself, before [s]", "share of the run, before",
    ]  # fmt: skip
    assert table.count("wait for gradients</td>") == 1 and table.count("</th>") == 9
    assert page.source.count("<dt>clock error</dt>") == 2
    data = json.loads(page.inside["data"])
    assert [len(data[name]["ranks"]) for name in ("trace", "trace_after")] == [2, 2]


def test_what_is_shown_of_both_sides_is_of_the_same_configuration(tmp_path: Path) -> None:
    """The second was run on more ranks, too."""
    before = make_study(tmp_path / "a", Shape(ranks=(1, 2), loaders=("pandas",), repeats=1))
    after = make_study(tmp_path / "b", Shape(ranks=(1, 2, 4), repeats=1))
    line = next(found for text in (after / "results.jsonl").read_text().splitlines() if (found := json.loads(text))["settings"]["ranks"] == 2)
    record_timeline(after / line["run"] / "timeline.json", ranks=2, phases=line["figures"])
    page = Page(write_report(before, after))
    for name in ("heat", "heat-after"):
        assert "The run on 2 ranks" in page.inside[f"figure-{name}"]


def test_variants_of_one_study_have_their_traces_side_by_side(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path, Shape(ranks=(1, 2), loaders=("pandas", "fast"), repeats=1))))
    assert titles(page, "heat") == ["Steps of every rank: before, pandas", "Steps of every rank: after, fast"]
    assert "The run on 2 ranks; " in page.inside["figure-timeline-after"], "which is in the title"
    assert page.source.count("<dt>clock error</dt>") == 1


def test_a_side_without_a_trace_says_so_and_two_say_it_once(tmp_path: Path) -> None:
    before = make_study(tmp_path / "a", Shape(ranks=(1, 2), loaders=("pandas",), repeats=1, trace=False))
    after = make_study(tmp_path / "b", Shape(ranks=(1, 2), repeats=1))
    page = Page(write_report(before, after))
    assert page.drawn("heat-after") and not page.drawn("heat")
    assert "timeline.json" in page.inside["figure-timeline"]
    for path in after.rglob("timeline.json"):
        path.unlink()
    assert Page(write_report(before, after)).source.count("No run has left a timeline.json") == 3, "both figures, and the chip of the clock"


def test_two_runs_are_shown_beside_each_other(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path / "a"), make_run(tmp_path / "b")))
    assert titles(page, "timeline") == [f"Phases and communication over time: {side}" for side in ("before, a", "after, b")]


def test_the_command_of_the_page_names_the_folder_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_study(tmp_path / "a b", Shape(ranks=(1, 2), repeats=1, trace=False, title=""))
    monkeypatch.chdir(tmp_path)
    assert 'data-text="farandole report &#x27;a b&#x27;"' in write_report(Path("a b")).read_text()
    monkeypatch.chdir(folder)
    text = write_report(Path()).read_text()
    assert 'data-text="farandole report ."' in text and "<h1>a b</h1>" in text


def test_a_single_run_has_its_own_page(tmp_path: Path) -> None:
    page = Page(write_report(make_run(tmp_path)))
    for name in ("phases", "history-loss", "history-accuracy", "heat", "timeline"):
        assert page.drawn(name), name
    assert "wait for gradients" in page.inside["components"]


def test_the_metric_of_a_run_is_the_one_its_benchmark_is_judged_by(tmp_path: Path) -> None:
    record = json.loads((make_run(tmp_path, trace=False) / "run.json").read_text())
    final = {"train": {"loss": 0.1, "accuracy": 0.91, "r2": 0.62}, "test": {"loss": 0.2, "accuracy": 0.9, "r2": 0.583}}
    (tmp_path / "run.json").write_text(json.dumps({**record, "benchmark": "p1b3", "metric": "r2", "final": final}))
    page = Page(write_report(tmp_path))
    assert 'data-name="test r2"' in page.source and 'data-name="test accuracy"' not in page.source
    assert "0.583" in page.inside["results"] and "0.900" not in page.inside["results"]
    assert "Test r2 0.583." in page.source


def test_the_local_batch_is_the_one_that_was_trained_with(tmp_path: Path) -> None:
    """Rules of batch scaling make it another one than was set."""
    folder = make_study(tmp_path, Shape(ranks=(4,), batch_sizes=(10, 20), repeats=1, trace=False, kind="batch"))
    text = (folder / "results.jsonl").read_text()
    assert 'data-name="local batch"' not in Page(write_report(folder)).source, "it is the axis"
    (folder / "results.jsonl").write_text(text.replace('"local_batch": 20', '"local_batch": 80'))
    page = Page(write_report(folder))
    assert 'data-name="local batch"' in page.source and 'data-v="80"' in page.source


def test_joules_above_idle_have_a_column_where_the_idle_node_was_measured(tmp_path: Path) -> None:
    idle = {"ranks": (1, 2), "repeats": 1, "trace": False, "power": "measured-node"}
    without = make_study(tmp_path / "without", Shape(**idle))  # type: ignore[arg-type]
    assert "above idle" not in Page(write_report(without)).source
    before = make_study(tmp_path / "before", Shape(loaders=("pandas",), idle_w=60.0, **idle))  # type: ignore[arg-type]
    after = make_study(tmp_path / "after", Shape(idle_w=60.0, **idle))  # type: ignore[arg-type]
    figures = json.loads((before / "results.jsonl").read_text().splitlines()[0])["figures"]
    page = Page(write_report(before, after))
    results, compared = (page.source.split(f'id="{name}"')[1].split("</table>")[0] for name in ("results", "comparison"))
    assert 'data-name="above idle [J]"' in results
    assert f'data-v="{figures["above_idle_j"]:.6g}"' in results
    for name in ("before", "after", "change"):
        assert f"above idle, {name}" in compared


def test_modelled_joules_above_idle_are_called_so(tmp_path: Path) -> None:
    page = Page(write_report(make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False, idle_w=60.0))))
    assert 'data-name="above idle, modelled [J]"' in page.source


def test_no_change_is_told_of_joules_that_are_not_above_idle(tmp_path: Path) -> None:
    """Less than the idle node took before: noise, of which no share can be taken."""
    idle = {"ranks": (1, 2), "repeats": 1, "trace": False, "power": "measured-node"}
    before = make_study(tmp_path / "before", Shape(loaders=("pandas",), idle_w=200.0, **idle))  # type: ignore[arg-type]
    after = make_study(tmp_path / "after", Shape(idle_w=60.0, **idle))  # type: ignore[arg-type]
    table = Page(write_report(before, after)).source.split('id="comparison"')[1].split("</table>")[0]
    headings = re.findall('data-name="([^"]*)"', table)
    cells = re.findall('<td[^>]* data-v="([^"]*)"', table)
    assert cells[headings.index("above idle, change")] == ""


def test_bars_end_at_the_total_that_the_table_has(tmp_path: Path) -> None:
    """Also where phases lack a little of it."""
    folder = make_study(tmp_path, Shape(ranks=(4,), loaders=("pandas", "fast"), repeats=1, trace=False))
    changed(folder, lambda line: line["figures"].update(total_s=50.0, load_s=10.0, train_s=39.8, preprocess_s=0.0, broadcast_s=0.0, evaluate_s=0.0))
    assert "50.0\u202fs" in Page(write_report(folder)).inside["figure-time"]


def test_nearly_all_is_not_all(tmp_path: Path) -> None:
    before, after = (make_study(tmp_path / name, Shape(ranks=(2,), loaders=(name,), repeats=1, trace=False)) for name in ("pandas", "fast"))
    changed(before, lambda line: line["figures"].update(load_s=1.0))
    changed(after, lambda line: line["figures"].update(load_s=0.003))
    assert "−99.7%" in Page(write_report(before, after)).inside["comparison"]


def test_a_spread_that_digits_do_not_show_is_left_out(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(ranks=(2,), repeats=2, trace=False))
    changed(folder, lambda line: line["figures"].update(total_s=100.0 + 0.01 * line["repeat"]))
    assert "100–100" not in Page(write_report(folder)).inside["results"]


def test_rows_say_that_power_is_modelled_where_not_all_are(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False))
    assert page_rows(folder).count("modelled power") == 0, "the headings say it"
    changed(folder, lambda line: line.update(marks=["modelled power"] if line["settings"]["ranks"] == 2 else []))
    assert page_rows(folder).count("modelled power</span>") == page_rows(folder).count('data-v="1 (modelled power)"') == 1


def page_rows(folder: Path) -> str:
    return Page(write_report(folder)).source.split('id="results"')[1].split("<tbody>")[1].split("</table>")[0]


def test_calls_are_counted_in_whole_numbers(tmp_path: Path) -> None:
    table = Page(write_report(make_run(tmp_path))).source.split('id="components"')[1].split("</table>")[0]
    assert ">fit</td><td data-v=\"1\">1</td>" in table


def test_names_are_not_joined_by_a_line(tmp_path: Path) -> None:
    figures = {}
    for name, shape in (("names", Shape(ranks=(4,), loaders=("pandas", "fast", "chunked"))), ("ranks", Shape(ranks=(1, 2, 4)))):
        page = Page(write_report(make_study(tmp_path / name, replace(shape, repeats=1, trace=False))))
        figures[name] = page.source.split('id="figure-energy"')[1].split("</figure>")[0]
    assert 'class="line' not in figures["names"] and 'class="line' in figures["ranks"]


def test_every_series_has_a_name(tmp_path: Path) -> None:
    """Beside its points, or in a legend where there is no room beside all of them."""
    shape = Shape(ranks=(4, 8, 16, 32, 64), loaders=("pandas", "fast"), batch_sizes=(10, 20, 80), repeats=1, trace=False, cores=64)
    figure = Page(write_report(make_study(tmp_path, shape))).source.split('id="figure-energy"')[1].split('class="narrow print"')[0]
    named = re.findall(r"batch size \d+, \w+", re.sub("<title>.*?</title>", "", figure, flags=re.DOTALL))
    assert len(set(named)) == 5


def test_words_of_others_stay_text(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)><!--"
    page = Page(write_report(make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False, title=hostile))))
    assert "<img" not in page.source
    assert json.loads(page.inside["data"])["about"]["title"] == hostile


def traced_once(folder: Path) -> Path:
    line = json.loads((folder / "results.jsonl").read_text().splitlines()[-1])
    record_timeline(folder / line["run"] / "timeline.json", ranks=line["settings"]["ranks"], steps=100)
    return folder


def test_200_points_are_quick_and_light(tmp_path: Path) -> None:
    folder = traced_once(large_study(tmp_path))
    assert len((folder / "results.jsonl").read_text().splitlines()) == 200
    start = time.process_time()
    path = write_report(folder)
    assert time.process_time() - start < 5
    assert path.stat().st_size < 3_000_000
    page = Page(path)
    assert "5 of 8 configurations are drawn" in page.source
    assert page.drawn("heat") and ", 100 steps. A row" in page.inside["figure-heat"]
    assert page.drawn("timeline") and "CPU of n1" in page.inside["figure-timeline"]
    assert "wait for gradients" in page.inside["components"]


def test_200_points_beside_as_many_are_quick_and_light(tmp_path: Path) -> None:
    before, after = (traced_once(large_study(tmp_path / name)) for name in ("before", "after"))
    start = time.process_time()
    path = write_report(before, after)
    assert time.process_time() - start < 5
    assert path.stat().st_size < 3_000_000
    page = Page(path)
    assert all(page.drawn(name) for name in ("heat", "heat-after", "timeline", "timeline-after"))


@pytest.mark.parametrize(
    "given",
    [
        *({"benchmark": name} for name in ("nt3", "p1b1", "p1b2", "p1b3")),
        {"benchmark": "nt3", "preset": "test", "dense": [30, 10], "work": "weak", "emulate_ranks": 8, "learning_rate": None},
        {"benchmark": "p1b2", "preset": "paper", "make_data": True, "dense": [], "checkpoint_best": "val_loss", "checkpoint_keep": 2},
        {"benchmark": "p1b3", "data_dir": "a b", "conv": [10, 10, 5], "cell_features": ["mirna", "proteome"], "loader": "pandas"},
    ],
)
def test_the_command_of_a_run_makes_the_same_run(given: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    from farandole.cli import main
    from farandole.train import command
    from farandole.train.settings import RunSettings

    found: list[RunSettings] = []
    ranks: list[int] = []

    def remember(settings: RunSettings, folder: Path, options: dict[str, int], *_: object) -> int:
        found.append(settings)
        ranks.append(options["ranks"])
        return 1

    monkeypatch.setattr(command, "_on_new_ranks", remember)
    settings = RunSettings.from_flat(given).as_flat()
    words = shlex.split(command_of({"benchmark": given["benchmark"], "ranks": 3, "settings": settings}) or "")
    assert main(words[1:]) == 1
    (again,) = found
    assert ranks == [3]
    assert {**again.as_flat(), "output_dir": None} == {**settings, "output_dir": None}


def test_the_command_writes_the_page_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from farandole.cli import main

    folder = make_study(tmp_path / "study", Shape(ranks=(1, 2), repeats=1, trace=False))
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert main(["report", str(folder), str(tmp_path / "absent")]) == 1
    assert "absent is not there" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def numbers(row: dict[str, str]) -> dict[str, str]:
    """What a person reads in the cells of a row, without spreads."""
    return {name: text.split(" (")[0] for name, text in row.items() if text}


def of_the_page(folder: Path) -> tuple[list[str], list[dict[str, str]], list[dict[str, str]]]:
    """Headings, and what is read and what is copied of each row."""
    table = write_report(folder).read_text().split('id="results"')[1].split("</table>")[0]
    headings = [re.sub(r"(, modelled)?( \[(.*)\])?$", lambda found: f" {found[3]}" if found[3] else "", name) for name in re.findall('data-name="([^"]*)"', table)]
    rows = [re.findall(r'<td[^>]*data-v="([^"]*)"[^>]*>([^<]*)', row) for row in table.split("<tbody>")[1].split("</tr>")[:-1]]
    return headings, [dict(zip(headings, (text for _, text in row))) for row in rows], [dict(zip(headings, (value for value, _ in row))) for row in rows]


def of_the_text(folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Both blocks: numbers stand at the right, words at the left, with two spaces or more in between."""
    headings: list[str] = []
    rows: list[dict[str, str]] = []
    for block in table_text(analyse_study(folder), "text").split("\n\n")[1:]:
        lines = [re.split(r" {2,}", line.strip()) for line in block.splitlines()]
        if len({len(line) for line in lines}) == 1 < len(lines[0]):
            found = [dict(zip(lines[0], line)) for line in lines[1:]]
            rows = [{**one, **other} for one, other in zip(rows, found)] if rows else found
            headings += [name for name in lines[0] if name not in headings]
    return headings, rows


def of_the_markdown(folder: Path) -> tuple[list[str], list[dict[str, str]]]:
    lines = [line.strip("| ").split(" | ") for line in table_text(analyse_study(folder), "markdown").splitlines() if line.startswith("| ")]
    return lines[0], [dict(zip(lines[0], line)) for line in lines[1:]]


def of_the_latex(folder: Path) -> list[dict[str, str]]:
    text = table_text(analyse_study(folder), "latex").replace(r"\%", "%").replace(r"$\sim$", "~").replace(r"\_", "_")
    head, *rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if " & " in line and line.endswith(r"\\")]
    return [dict(zip(head, row)) for row in rows]


@pytest.mark.parametrize("kind", ["strong", "batch", "loaders", "run"])
def test_text_markdown_latex_csv_and_page_show_the_same(tmp_path: Path, kind: str) -> None:
    if kind == "loaders":
        folder = make_loaders(tmp_path, loaders=("pandas", "fast"))
    elif kind == "run":
        folder = make_run(tmp_path, trace=False)
    else:
        folder = make_study(tmp_path, Shape(kind=kind, ranks=(2, 4), batch_sizes=(10, 20), trace=False, idle_w=60.0, failures=((4, 1),)))
    headings, shown, copied = of_the_page(folder)
    as_markdown, as_text = of_the_markdown(folder), of_the_text(folder)
    assert sorted(as_text[0]) == sorted(as_markdown[0]) == sorted(headings) and len(shown) == len(analyse_study(folder).cases)
    for rows in (as_text[1], as_markdown[1], of_the_latex(folder)):
        typed = [{name: text.replace("×", "x").replace("–", "-") for name, text in row.items()} for row in shown]
        assert [numbers(row) for row in rows] == [numbers(row) for row in typed]
    in_full = list(csv.DictReader(io.StringIO(table_text(analyse_study(folder), "csv"))))
    columns = {"total s": "total_s", "load s": "load_s", "energy J": "energy_j", "above idle J": "above_idle_j", "test accuracy": "test_accuracy", "speedup": "speedup", "read MB/s": "mb_per_s"}
    compared = [name for name in columns if name in headings]
    assert len(compared) >= 3

    def sides(rows: list[dict[str, str]], names: dict[str, str]) -> list[list[str]]:
        return sorted([f"{float(row[names[name]]):.6g}" for name in compared] for row in rows)

    assert sides(in_full, columns) == sides(copied, {name: name for name in columns})


def test_imported_medians_keep_their_spreads_and_counts_on_the_page(tmp_path: Path) -> None:
    folder = make_study(tmp_path / "ours", Shape(ranks=(1, 2), trace=False, power="measured-node"))
    changed(folder, lambda line: line["figures"].update(test_accuracy=None) if line["repeat"] == 1 else None)
    (tmp_path / "ours.csv").write_text(table_text(analyse_study(folder), "csv"))
    there = import_figures(str(tmp_path / "ours.csv"), tmp_path / "there", None).path
    for name in ("total s", "test accuracy", "runs"):
        assert [row[name] for row in of_the_page(there)[1]] == [row[name] for row in of_the_page(folder)[1]]
    ours, theirs = (write_report(one).read_text().split('id="results"')[1].split("</table>")[0] for one in (folder, there))
    spreads = re.findall("<small>([^<]*)</small>", ours)
    assert spreads.count("2 of 3") == 2 and len(spreads) > 4 and re.findall("<small>([^<]*)</small>", theirs) == spreads, "of totals and accuracies, which are 2 of 3"
    page = Page(there / "report.html")
    assert "Medians of 3 runs a case, made where they come from." in page.inside["results-note"]
    assert "one run" not in page.source.split('id="data"')[0].lower()


def test_one_headline_stands_on_top_and_caveats_below_it(tmp_path: Path) -> None:
    folder = make_study(tmp_path, Shape(ranks=(1, 2), loaders=("pandas", "fast"), repeats=2, trace=False, power="measured-node"))
    source = write_report(folder).read_text()
    first, second = analyse_study(folder).verdicts()
    below = [re.sub("<.*?>", "", one) for one in source.split('<ul class="caveats">')[1].split("</ul>")[0].split("</li>")[:-1]]
    assert source.count('class="verdict') == 1 and f'<p class="verdict">{first.headline}</p>' in source
    assert below == [*first.caveats, " ".join([second.headline, *second.caveats])]


def test_a_page_that_cannot_be_made_is_said_and_raises_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_study(tmp_path / "a b", Shape(ranks=(1, 2), repeats=1, trace=False))
    (folder / "report.html").mkdir()
    assert write_page_if_possible(folder) is None
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("farandole: the results are complete, but their page could not be made: ") and "report.html cannot be written: Is a directory" in first
    assert second == f"To try again, type: farandole report '{folder}'"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    (folder / "report.html").rmdir()
    assert write_page_if_possible(folder) == folder / "report.html"
