"""What a reader must know before believing a figure: of how many runs it is, what ran beside them, what their meters remark."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farandole.observe.machine_time import BUSY_SHARE
from farandole.report import write_report
from farandole.report.content import Content, content_of
from farandole.report.figures import Figure
from farandole.results.reading import read_folder
from farandole.results.schema import MEASURES
from studyfolder import Shape, changed, make_run, make_study


def study(folder: Path, change: Callable[[dict[str, Any]], None] = lambda line: None, **shape: Any) -> Path:
    """On 1 and 2 ranks, three times each, with its results as `change` leaves them."""
    make_study(folder, Shape(**{"ranks": (1, 2), "repeats": 3, "trace": False, "power": "measured-node", "cores": 64, **shape}))
    return changed(folder, change)


def content(folder: Path, other: Path | None = None) -> Content:
    return content_of(read_folder(folder), None if other is None else read_folder(other))


def caveats(found: Content) -> list[str]:
    """Of the verdict on top."""
    return found.verdicts[0].caveats


def figure(found: Content, name: str) -> Figure:
    return next(one for one in found.figures if one.name == name)


def drawn(found: Content, name: str) -> str:
    draw = figure(found, name).draw
    assert draw is not None, figure(found, name).reason
    return draw(540.0)


def rows(found: Content, table: int = 0) -> list[str]:
    return found.tables[table][1].split("<tbody>")[1].split("</tbody>")[0].split("</tr>")[:-1]


def chip(found: Content, name: str) -> str:
    return next(item.words for item in found.trust if item.name == name)


def diverged(line: dict[str, Any]) -> None:
    """Two of three runs on 2 ranks."""
    if line["settings"]["ranks"] == 2 and line["repeat"] < 2:
        line["figures"].update(dict.fromkeys(("loss", "accuracy", "test_loss", "test_accuracy"), math.nan))


def test_a_median_says_of_how_many_runs_it_is_where_it_is_not_of_all(tmp_path: Path) -> None:
    found = content(study(tmp_path, diverged))
    one, two = rows(found)
    assert two.count("<small>1 of 3</small>") == 4 and " of 3" not in one
    copied = [re.findall('data-v="([^"]*)"', row) for row in (one, two)]
    assert [row[-1] for row in copied] == ["3", "3 (loss 1 of 3, accuracy 1 of 3, test loss 1 of 3, test accuracy 1 of 3)"]
    assert all(float(value) for row in copied for value in row[:-1])
    assert "(N of M): M runs ended well, and N of them have the value." in found.tables[0][1]
    assert "Test accuracy is not known in 2 of 6 runs and told of the others." in caveats(found)


def test_figures_say_it_too(tmp_path: Path) -> None:
    found = content(study(tmp_path, diverged))
    assert figure(found, "accuracy").caption.endswith(" Not known in 2 of 6 runs and shown of the others.")
    assert re.search(r"test accuracy 0\.\d+ \(1 of 3 runs\)\n", drawn(found, "accuracy"))
    assert "Not known" not in figure(found, "time").caption


def test_nothing_is_said_where_all_runs_know_a_figure(tmp_path: Path) -> None:
    found = content(study(tmp_path))
    assert "not known in" not in str(found.verdicts[0]) and " of 3" not in "".join(rows(found)) and "(N of M)" not in found.tables[0][1]


def test_joules_that_some_runs_lack_are_told(tmp_path: Path) -> None:
    found = content(study(tmp_path, lambda line: line["figures"].update(energy_j=None) if line["repeat"] else None))
    assert figure(found, "energy").caption.endswith(" Not known in 4 of 6 runs and shown of the others.")
    assert "(1 of 3 runs) in " in drawn(found, "energy")


def test_both_sides_of_a_comparison_say_of_how_many_runs_they_are(tmp_path: Path) -> None:
    before = study(tmp_path / "pandas", lambda line: line["figures"].update(total_s=math.nan) if line["repeat"] else None, loaders=("pandas",))
    after = study(tmp_path / "fast", diverged)
    found = content(before, after)
    two = rows(found)[1]
    assert two.count("<small>1 of 3</small>") == 1
    assert " → 0.9" in two and "(1 of 3)</td>" in two and 'data-v="3 → 3 (total, before 1 of 3)"' in two
    assert "Time is not known in 2 of 6 runs and told of the others." in caveats(found)
    assert figure(found, "compare").caption.startswith("Medians; ") and "Not known in 4 of 12 runs" in figure(found, "compare").caption


def beside(**shares: float) -> Callable[[dict[str, Any]], None]:
    """What others took, by the ranks: `on_2=0.9`."""
    return lambda line: line["figures"].update(others_share=shares.get(f"on_{line['settings']['ranks']}", 0.01))


def test_a_verdict_on_runs_beside_other_programs_says_so(tmp_path: Path) -> None:
    found = content(study(tmp_path / "some", beside(on_2=0.9)))
    assert "In part measured on a busy machine: other programs took 90% of its processor time." in caveats(found)
    one, two = rows(found)
    assert "busy machine" not in one
    assert '<span class="mark">busy machine</span>' in two and 'data-v="3 (busy machine)"' in two
    assert "busy machine" in drawn(found, "time"), "what pointing at it tells"
    changed(tmp_path / "some", lambda line: line.update(marks=["busy machine"] if line["settings"]["ranks"] == 2 else []))
    assert rows(content(tmp_path / "some"))[1] == two, "once, also where results have the mark"
    found = content(study(tmp_path / "all", beside(on_1=0.3, on_2=0.2)))
    assert "Measured on a busy machine: other programs took 30% of its processor time." in caveats(found)


SPREAD = next(name for name in MEASURES if name.endswith("_spread"))


@pytest.mark.parametrize(
    ("measure", "value", "words"),
    [("steal_share", 0.25, "its host took 25% of its processor time"), (SPREAD, 0.5, "the middle half of the steps spreads by 50%")],
)
def test_hosts_and_unequal_steps_make_a_machine_busy_too(tmp_path: Path, measure: str, value: float, words: str) -> None:
    found = content(study(tmp_path, lambda line: line["figures"].update({"others_share": 0.0, measure: value})))
    (told,) = [caveat for caveat in caveats(found) if "busy machine" in caveat]
    assert words in told and all("busy machine" in row for row in rows(found))


def test_a_quiet_machine_is_no_clause(tmp_path: Path) -> None:
    found = content(study(tmp_path, beside(on_1=BUSY_SHARE, on_2=0.0)))
    assert "other programs" not in str(found.verdicts[0]) and "busy machine" not in "".join(rows(found))


def test_what_ran_beside_runs_that_are_left_aside_is_no_clause(tmp_path: Path) -> None:
    found = content(study(tmp_path, beside(on_4=0.9), ranks=(1, 2, 4), cores=2))
    assert "oversubscribed" in str(found.verdicts[0]) and "other programs" not in str(found.verdicts[0])


def test_a_comparison_beside_other_programs_says_so(tmp_path: Path) -> None:
    before, after = study(tmp_path / "pandas", beside(on_2=0.9), loaders=("pandas",)), study(tmp_path / "fast", beside())
    found = content(before, after)
    assert "In part measured on a busy machine: other programs took 90% of its processor time." in caveats(found)
    assert "busy machine</span>" in rows(found)[1]


def test_power_of_runs_that_have_not_finished_is_not_called_unsampled(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert any(folder.rglob("power.json"))
    (folder / "results.jsonl").write_text("")
    found = content(folder)
    assert chip(found, "energy known") == chip(found, "power") == "No run has finished."
    assert figure(found, "energy").reason == "No run knows its energy: no run has finished."
    assert "not sampled" not in write_report(folder).read_text()


CEILING = "package-0: at its ceiling of 80 W {}% of the time: its power is limited, or more than the meter can show"
COVERS_LESS = "the parts took 900 J, more than the node: its meter does not cover all of them"


def remarked(folder: Path, remarks: Callable[[int], dict[str, Any]]) -> Path:
    """Each power.json of it with what `remarks` adds to the first node."""
    for at, result in enumerate(read_folder(folder).results):
        assert result.run is not None
        path = result.run / "power.json"
        told = json.loads(path.read_text())
        told["nodes"][0] |= remarks(at)
        path.write_text(json.dumps(told))
    return folder


def whole(*remarks: str, **parts: str) -> dict[str, Any]:
    return {"whole": {"total": {"remarks": [*remarks]}, "parts": {part: {"remarks": [remark]} for part, remark in parts.items()}}}


def test_what_meters_remark_is_among_the_notes(tmp_path: Path) -> None:
    """Each kind once, however its numbers differ."""
    folder = remarked(study(tmp_path), lambda at: whole(COVERS_LESS, cpu=CEILING.format(30 + at)) if at else {})
    assert content(folder).notes == [f"Power: {COVERS_LESS} (5 of 6 runs).", f"Power: {CEILING.format(31)} (5 of 6 runs, with other numbers)."]


def test_what_meters_remark_in_a_single_run_is_there_as_well(tmp_path: Path) -> None:
    folder = make_run(tmp_path, trace=False)
    total = {"energy_j": 900.0, "mean_w": 9.0, "duration_s": 100.0, "provenance": "measured-node", "remarks": [COVERS_LESS]}
    (folder / "power.json").write_text(json.dumps({"total": total, "nodes": [whole(COVERS_LESS, node=COVERS_LESS)]}))
    assert content(folder).notes == [f"Power: {COVERS_LESS}."]


def test_what_meters_remark_is_told_of_a_command_too(tmp_path: Path) -> None:
    """Its power.json is of one node, without a list of them."""
    folder = study(tmp_path, ranks=(2,), repeats=1)
    (path,) = folder.rglob("power.json")
    path.write_text(json.dumps(whole(cpu=CEILING.format(50))))
    assert content(folder).notes == [f"Power: {CEILING.format(50)}."]


def test_remarks_of_several_meters_stay_apart(tmp_path: Path) -> None:
    """Their names have numbers, too."""
    folder = remarked(study(tmp_path), lambda at: whole(*(f"gpu {gpu}: failed readings: Input/output error ({at + 1})" for gpu in (0, 1))))
    told = [f"Power: gpu {gpu}: failed readings: Input/output error (1) (6 of 6 runs, with other numbers)." for gpu in (0, 1)]
    assert content(folder).notes == told


@pytest.mark.parametrize("time_s", [-3.0, 0.0])
def test_a_time_that_cannot_be_is_left_out_and_told(tmp_path: Path, time_s: float) -> None:
    folder = study(tmp_path, lambda line: line["figures"].update(total_s=time_s) if line["settings"]["ranks"] == 2 and line["repeat"] else None)
    found = content(folder)
    assert found.notes == [f"results.jsonl: total_s of 2 runs is left out: it cannot be {time_s:g}."]
    assert "<small>1 of 3</small>" in rows(found)[1]
    assert "Not known in 2 of 6 runs" in figure(found, "time").caption
    assert drawn(found, "time").count("dot") and write_report(folder).is_file()


def test_of_times_that_cannot_be_alone_nothing_is_drawn(tmp_path: Path) -> None:
    folder = study(tmp_path, lambda line: line.update(figures={"total_s": -1.0 - line["repeat"], "energy_j": -4.0}), power="none")
    found = content(folder)
    assert found.notes[0] == "results.jsonl: total_s of 6 runs is left out: it cannot be -1, -2 or -3."
    assert found.notes[1] == "results.jsonl: energy_j of 6 runs is left out: it cannot be -4."
    assert figure(found, "time").draw is None and write_report(folder).is_file()


def test_a_loading_that_took_no_time_has_no_place_on_a_logarithmic_axis(tmp_path: Path) -> None:
    """Of a table of seconds of loading, where 0.0 is what is left of a few milliseconds."""
    folder = study(tmp_path, lambda line: line.update(figures={"load_s": 0.0 if line["repeat"] == 0 else 2.0}), power="none")
    found = content(folder)
    assert figure(found, "time").caption.endswith(" 2 runs that took 0 s have no place on a logarithmic axis.")
    assert drawn(found, "time").count('class="repeat"') == 4 and not found.notes


def test_what_meters_have_seen_is_not_rounded_up_to_all(tmp_path: Path) -> None:
    folder = study(tmp_path)
    assert chip(content(folder), "energy known") == "Runs whose energy is known; meters have seen 99.6% of their time or more, the rest is bridged."
    for path in folder.rglob("power.json"):
        told = json.loads(path.read_text())
        told["total"]["bridged_s"] = 0.0
        path.write_text(json.dumps(told))
    assert chip(content(folder), "energy known") == "Runs whose energy is known; meters have seen all of their time."


def test_one_is_no_plural(tmp_path: Path) -> None:
    folder = study(tmp_path, ranks=(1, 2), cores=1, repeats=1)
    changed(folder, lambda line: line.update(marks=["oversubscribed"]) if line["settings"]["ranks"] == 1 else None)
    assert "1 and 2 ranks shared cores" in str(content(folder).verdicts[0])
    changed(folder, lambda line: line.update(marks=["oversubscribed"] if line["settings"]["ranks"] == 1 else []))
    assert "1 rank shared cores (oversubscribed) and says nothing of scaling." in caveats(content(folder))
    page = write_report(folder).read_text()
    assert "Processor, 1 core<" in page and not re.search(r"\b1 (ranks|cores|runs|points)\b", re.sub(r"\b(and|of|to) 1 \w+", "", page.split('id="data"')[0]))
    (folder / "results.jsonl").write_text((folder / "results.jsonl").read_text() + json.dumps({"study": "weak", "settings": {}}) + "\n")
    assert content(folder).notes == ["results.jsonl: 1 of its lines belongs to another study and is left out."]
