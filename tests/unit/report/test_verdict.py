"""The sentence on top says what limits a run, and never more than is known."""

import json
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.report.content import Content, content_of
from farandole.report.numbers import seconds
from farandole.report.reading import read_folder
from studyfolder import Shape, make_run, make_study


def content(folder: Path, other: Path | None = None, **shape: object) -> Content:
    make_study(folder, Shape(**{"repeats": 1, "trace": False, "cores": 64, **shape}))  # type: ignore[arg-type]
    return content_of(read_folder(folder), None if other is None else read_folder(other))


def test_where_efficiency_ends_and_why(tmp_path: Path) -> None:
    (verdict,) = content(tmp_path).verdicts
    assert verdict.startswith("Efficient to 4 ranks (8")
    assert "; beyond that loading data dominates (" in verdict
    assert "test accuracy falls from 0.99 to 0.9" in verdict
    assert verdict.endswith("; power modelled, not measured.")


def test_all_rank_counts_may_be_efficient(tmp_path: Path) -> None:
    (verdict,) = content(tmp_path, kind="weak", ranks=(1, 2, 4), power="measured-node").verdicts
    assert verdict.startswith("Efficient to 4 ranks, the most that were run (100%)")
    assert verdict.endswith("; power measured.")


def test_none_may_be(tmp_path: Path) -> None:
    (verdict,) = content(tmp_path, ranks=(1, 16), power="none", accuracy=False).verdicts
    assert verdict.startswith("Not efficient beyond 1 rank: 4")
    assert verdict.endswith("power not known.")


def test_nearly_efficient_is_not_rounded_up_to_it(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False, power="none"))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line, total_s in zip(lines, (100.0, 62.7)):
        line["figures"] = {"total_s": total_s}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (verdict,) = content_of(read_folder(tmp_path), None).verdicts
    assert verdict.startswith("Not efficient beyond 1 rank: 79% on 2")


def test_ranks_that_share_cores_say_nothing_of_scaling(tmp_path: Path) -> None:
    found = content(tmp_path, ranks=(1, 2, 4), cores=2)
    assert "Efficient to 2 ranks, the most that were run" in found.verdicts[0]
    assert "4 ranks shared cores (oversubscribed) and say nothing of scaling" in found.verdicts[0]
    chip = next(item for item in found.trust if item.name == "oversubscribed")
    assert (chip.value, chip.level) == ("on 4 ranks", "bad")


def test_no_run_has_finished(tmp_path: Path) -> None:
    found = content(tmp_path, ranks=(2,), failures=((2, 0),))
    assert found.verdicts == ["No run has finished: rank 1 of 2 was killed (signal 9)."]
    assert all(figure.reason for figure in found.figures)


def test_other_studies_name_the_fastest_and_the_best(tmp_path: Path) -> None:
    (verdict,) = content(tmp_path, kind="batch", ranks=(4,), batch_sizes=(10, 80)).verdicts
    assert verdict.startswith("Fastest with batch size 80: ")
    assert "; best test accuracy with 10: 0.9" in verdict


def test_the_fastest_is_compared_along_the_axis_alone(tmp_path: Path) -> None:
    """On fewer ranks, the other batch size would be slower for another reason."""
    found = content(tmp_path, kind="batch", ranks=(2, 8), batch_sizes=(10, 80), rates=(0.001,))
    times = {(line["settings"]["ranks"], line["settings"]["batch_size"]): line["figures"]["total_s"] for line in read_folder(tmp_path).raw}
    factor = times[8, 10] / times[8, 80]
    assert found.verdicts[-1].startswith("Fastest with batch size 80 (ranks 8, learning rate 0.008): ")
    assert f", {factor:.2f}× as fast as 10; " in found.verdicts[-1]


def rules(folder: Path, reached: dict[tuple[str, int], float], kind: str = "strong") -> Content:
    """A study of rules for the rate, each with the accuracy it has reached as so many ranks; 0: as those there are."""
    make_study(folder, Shape(ranks=(1,), repeats=1, trace=False, kind=kind))
    (line,) = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    lines = []
    for at, ((rule, as_ranks), accuracy) in enumerate(reached.items()):
        settings = {**line["settings"], "ranks": min(as_ranks, 2) or 2, "emulate_ranks": as_ranks, "lr_scaling": rule}
        figures = {**line["figures"], "test_accuracy": accuracy, "total_s": 100.0 / (as_ranks or at + 1)}
        lines.append({**line, "key": str(at), "settings": settings, "figures": figures, "marks": ["emulated ranks", "modelled power"]})
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**about, "points": lines}))
    return content_of(read_folder(folder), None)


def test_emulated_ranks_tell_of_accuracy_and_never_of_speed(tmp_path: Path) -> None:
    """On one rank or on two, as they divide: those are not what is varied."""
    reached = {("linear", 1): 0.99, ("linear", 8): 0.98, ("linear", 48): 0.6, ("none", 1): 0.99, ("none", 8): 0.985, ("none", 48): 0.975}
    found = rules(tmp_path, reached)
    (verdict,) = found.verdicts
    assert verdict.startswith("Test accuracy holds to 8 ranks with rate scaling linear (0.98) and is 0.60 on 48; ")
    assert verdict.endswith("; holds to 48 ranks with rate scaling none (0.97); power modelled, not measured.")
    assert [figure.name for figure in found.figures if figure.draw] == ["accuracy"]
    assert "emulating" in next(figure for figure in found.figures if figure.name == "time").reason


def test_one_number_of_emulated_ranks_tells_nothing_of_speed_either(tmp_path: Path) -> None:
    found = rules(tmp_path, {("linear", 48): 0.6, ("sqrt", 48): 0.91, ("none", 48): 0.975})
    assert found.verdicts == [
        "Trained as 48 ranks, test accuracy is 0.97 with rate scaling none and 0.60 with linear; power modelled, not measured."
    ]
    (accuracy,) = [figure for figure in found.figures if figure.draw]
    assert (accuracy.name, accuracy.title) == ("accuracy", "Test accuracy by rate scaling")
    assert accuracy.draw is not None and ">0.910</text>" in accuracy.draw(540.0)


def test_accuracy_along_names_is_drawn_beside_the_time(tmp_path: Path) -> None:
    found = rules(tmp_path, {("linear", 0): 0.6, ("none", 0): -0.2}, kind="lr")
    assert [figure.name for figure in found.figures if figure.draw] == ["time", "energy", "accuracy"]
    assert found.verdicts[0].startswith("Fastest with rate scaling none: ")
    drawn = next(figure.draw for figure in found.figures if figure.name == "accuracy")
    assert drawn is not None and drawn(540.0).count('class="fill s1"') == 2


def test_a_single_run(tmp_path: Path) -> None:
    (verdict,) = content_of(read_folder(make_run(tmp_path, trace=False)), None).verdicts
    assert verdict.startswith("4 ranks trained for 8 epochs in ")
    assert "training took " in verdict
    assert "test accuracy 0.981; power not known." in verdict


def test_a_run_that_a_timeout_has_ended_trained_for_the_epochs_it_has_done(tmp_path: Path) -> None:
    folder = make_run(tmp_path, trace=False)
    record = json.loads((folder / "run.json").read_text())
    record["plan"]["epochs"], record["epochs"] = 384, record["epochs"][:3]
    (folder / "run.json").write_text(json.dumps(record))
    (verdict,) = content_of(read_folder(folder), None).verdicts
    assert verdict.startswith("4 ranks trained for 3 epochs in ")


def test_a_comparison_says_what_changed_and_claims_no_modelled_saving(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(repeats=1, trace=False, cores=64))
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",))
    assert found.verdicts[0].startswith("Fast instead of pandas: ")
    assert "less time on 16 ranks" in found.verdicts[0]
    assert "; loading changed most, " in found.verdicts[0]
    assert "; one run each: how far runs differ by themselves is not known; " in found.verdicts[0]
    assert found.verdicts[0].endswith("energy is modelled and not compared.")


def test_a_comparison_is_of_ranks_that_had_cores_of_their_own(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(ranks=(1, 2, 4), repeats=1, trace=False, cores=2))
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), ranks=(1, 2, 4))
    assert "less time on 2 ranks" in found.verdicts[0]
    assert "; 4 ranks shared cores (oversubscribed) and are left aside; " in found.verdicts[0]
    figures = {figure.name: figure for figure in found.figures}
    bars, times = figures["compare"].draw, figures["compare-time"].draw
    assert bars is not None and ">4 ranks, oversubscribed</text>" in bars(1120.0) and ">2 ranks</text>" in bars(1120.0)
    assert times is not None and times(540.0).count("dot hollow") == 4, "totals and loading of both"
    assert "Hollow: oversubscribed" in figures["compare-time"].caption
    assert found.tables[0][1].count("oversubscribed</span>") == 1


def test_a_comparison_of_ranks_that_all_shared_cores_says_so(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(ranks=(2, 4), repeats=1, trace=False, cores=1))
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), ranks=(2, 4), cores=1)
    assert "less time on 4 ranks" in found.verdicts[0]
    assert "; ranks shared cores (oversubscribed), and a machine that has enough may differ; " in found.verdicts[0]


def test_studies_of_several_series_are_compared_series_by_series(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(ranks=(1, 2), batch_sizes=(20, 10), repeats=1, trace=False))
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), ranks=(1, 2), batch_sizes=(10, 20))
    assert "less time on 2 ranks, batch size 20 (" in found.verdicts[0]
    figures = {figure.name: figure for figure in found.figures}
    bars = figures["compare"].draw
    assert bars is not None and ">2 ranks, batch size 10</text>" in bars(1120.0)
    assert figures["compare-time"].caption.endswith("Of batch size 20; the table has all.")
    assert found.tables[0][1].count(">batch size 10</td>") == 2


@pytest.mark.parametrize("several", ["before", "after"])
def test_which_of_several_to_compare_is_asked_for(tmp_path: Path, several: str) -> None:
    one, two = ("pandas",), ("fast", "chunked")
    make_study(tmp_path / "after", Shape(ranks=(1, 2), repeats=1, trace=False, loaders=two if several == "after" else one))
    told = rf"{several} has loader=fast, chunked, and the other folder has none.*--set loader=fast, .* farandole report .*{several}$"
    with pytest.raises(SettingsError, match=told):
        content(tmp_path / "before", tmp_path / "after", ranks=(1, 2), loaders=two if several == "before" else one)


def test_what_follows_from_the_ranks_is_no_name_of_a_side(tmp_path: Path) -> None:
    """The rate of each number of ranks is another one in both."""
    make_study(tmp_path / "high", Shape(ranks=(1, 2), rates=(0.03,), repeats=1, trace=False))
    found = content(tmp_path / "low", tmp_path / "high", ranks=(1, 2))
    assert found.verdicts[0].startswith("high instead of low: "), "a folder's name is as it is"


def test_machines_and_versions_that_differ_are_told_first(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(ranks=(1, 2), repeats=2, failures=((2, 0),), trace=False))
    (note,) = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), ranks=(1, 2), cores=8).notes
    assert note.startswith("fast: Failed: rank 1 of 2 was killed (signal 9) (points/")
    about = json.loads((tmp_path / "fast" / "study.json").read_text())
    about["environment"] |= {"cpu": "Other Processor", "packages": {**about["environment"]["packages"], "torch": "2.14.0"}}
    (tmp_path / "fast" / "study.json").write_text(json.dumps(about))
    found = content_of(read_folder(tmp_path / "pandas"), read_folder(tmp_path / "fast"))
    assert found.notes[0] == (
        "Before and after were not made alike, which may be why they differ: "
        "processor Example 9000 Processor → Other Processor, torch 2.13.0 → 2.14.0."
    )
    assert {item.name: item.value for item in found.trust_after}["failed runs"] == "1 of 4"


def test_runs_that_differ_as_much_by_themselves_are_no_difference(tmp_path: Path) -> None:
    for name, times in (("pandas", (100.0, 120.0, 130.0)), ("fast", (90.0, 100.0, 118.0))):
        make_study(tmp_path / name, Shape(ranks=(2,), repeats=3, trace=False, loaders=(name,)))
        lines = [json.loads(line) for line in (tmp_path / name / "results.jsonl").read_text().splitlines()]
        for line, total_s in zip(lines, times):
            line["figures"]["total_s"] = total_s
        (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = content_of(read_folder(tmp_path / "pandas"), read_folder(tmp_path / "fast"))
    assert found.verdicts[0].startswith("Fast instead of pandas: no difference on 2 ranks that these runs could tell; ")
    assert "one run each" not in found.verdicts[0]


def compared(folder: Path, varied: str = "loader", **sides: list[dict[str, float]]) -> str:
    """The verdict on two variants of one study on 2 ranks, each with the figures of its runs; those of phases are changed, too."""
    make_study(folder, Shape(ranks=(1, 2), loaders=tuple(sides), repeats=3, trace=False, power="measured-node"))
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    kept = []
    for line in lines:
        runs = sides[line["settings"]["loader"]]
        if line["repeat"] < len(runs):
            own = {"total_s": 20.0, "load_s": 1.0, "preprocess_s": 0.5, "broadcast_s": 0.1, "train_s": 15.0, "evaluate_s": 0.5, "energy_j": 1000.0}
            line["figures"] |= own | runs[line["repeat"]]
            line["settings"][varied] = line["settings"].pop("loader")
            kept.append(line)
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    return content_of(read_folder(folder), None).verdicts[0]


ONCE = "; one run each: how far runs differ by themselves is not known"


@pytest.mark.parametrize(
    ("total_s", "train_s", "load_s", "how"),
    [
        (23.6, 19.6, 1.0, "that does not explain the change of the total, "),
        (18.0, 14.0, 1.0, "that explains 49% of the change of the total, "),
        (18.0, 23.0, 11.0, "the total changed by less, "),
    ],
)
def test_a_total_that_loading_does_not_explain_is_no_gain_or_loss_of_a_loader(
    tmp_path: Path, total_s: float, train_s: float, load_s: float, how: str
) -> None:
    told = compared(tmp_path, pandas=[{"load_s": load_s}], fast=[{"total_s": total_s, "load_s": 0.02, "train_s": train_s, "energy_j": 1180.0}])
    assert told == (
        f"Fast instead of pandas: loading {seconds(load_s)} → 20.0\u202fms on 2 ranks; {how}"
        f"20.0\u202fs → {total_s:.1f}\u202fs (training 15.0\u202fs → {train_s:.1f}\u202fs){ONCE}; energy follows the time and is not compared."
    )


def test_repeats_do_not_make_a_loader_the_cause_of_what_it_cannot_change(tmp_path: Path) -> None:
    slower = [{"total_s": 23.6 + at, "load_s": 0.02, "train_s": 19.3} for at in (0.0, 0.2, 0.4)]
    told = compared(tmp_path, pandas=[{}] * 3, fast=slower)
    assert "; that does not explain the change of the total, " in told and "one run" not in told


def test_a_broadcast_that_waits_for_slow_loading_is_a_part_of_what_it_costs(tmp_path: Path) -> None:
    told = compared(tmp_path, pandas=[{"total_s": 40.0, "load_s": 5.0, "broadcast_s": 16.0}], fast=[{}])
    assert told.startswith("Fast instead of pandas: 50% less time on 2 ranks (2.00×); broadcast changed most, 16.0\u202fs → 100\u202fms")


def test_other_settings_may_change_every_phase(tmp_path: Path) -> None:
    told = compared(tmp_path, varied="framework", torch=[{}], jax=[{"total_s": 23.6, "train_s": 19.3}])
    assert told.startswith(f"Framework torch instead of framework jax: 15% less time on 2 ranks (1.18×); training changed most, 19.3\u202fs → 15.0\u202fs{ONCE}")


def test_one_run_within_what_the_other_side_s_differ_by_is_no_difference(tmp_path: Path) -> None:
    told = compared(tmp_path, pandas=[{"total_s": time, "load_s": 4.0} for time in (20.0, 26.0, 30.0)], fast=[{"total_s": 21.0}])
    assert "Fast instead of pandas: no difference on 2 ranks that these runs could tell; loading changed most" in told
    assert "; one run of fast: how far it would differ from others is not known" in told


def test_joules_are_told_as_far_as_repeats_tell_them_apart(tmp_path: Path) -> None:
    slow = [{"total_s": 30.0 + at, "load_s": 11.0 + at, "energy_j": 1000.0 + 300 * at} for at in range(3)]
    assert compared(tmp_path / "a", pandas=slow, fast=[{"energy_j": 1000.0 + at} for at in range(3)]).endswith(
        "less time on 2 ranks (1.55×); loading changed most, 12.0\u202fs → 1.00\u202fs; no difference of the energy that these runs could tell."
    )
    assert compared(tmp_path / "b", pandas=slow, fast=[{"energy_j": 500.0 + at} for at in range(3)]).endswith("; 61% less energy.")
    assert compared(tmp_path / "c", pandas=[{}] * 3, fast=[{"energy_j": 990.0}] * 3).endswith("; the same energy, within 3%.")


def by_loader(folder: Path, **sides: dict[str, float]) -> str:
    """The verdict on loaders on one number of ranks, which are then the axis."""
    make_study(folder, Shape(ranks=(4,), loaders=tuple(sides), repeats=2, trace=False))
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["figures"] |= {"total_s": 20.0 + line["repeat"], "load_s": 1.0, "train_s": 15.0, "broadcast_s": 0.1} | sides[line["settings"]["loader"]]
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return content_of(read_folder(folder), None).verdicts[0]


def test_the_fastest_is_told_by_how_much_where_runs_tell_it(tmp_path: Path) -> None:
    told = by_loader(tmp_path / "a", pandas={"total_s": 30.0, "load_s": 10.5}, fast={})
    assert told.startswith("Fastest with loader fast: 20.5\u202fs, 1.46× as fast as pandas; ")
    told = by_loader(tmp_path / "b", pandas={"total_s": 20.8, "load_s": 1.2}, fast={})
    assert told.startswith("Fastest with loader fast: 20.5\u202fs, no difference from pandas (20.8\u202fs) that these runs could tell; ")
    told = by_loader(tmp_path / "c", pandas={"total_s": 30.0, "load_s": 1.2, "train_s": 24.0}, fast={})
    assert told.startswith("Fastest with loader fast: 20.5\u202fs, which loading (1.00\u202fs) does not explain beside pandas (30.0\u202fs, loading 1.20\u202fs); ")


def test_a_measured_saving_is_told(tmp_path: Path) -> None:
    measured = {"ranks": (1, 2), "power": "measured-node"}
    make_study(tmp_path / "fast", Shape(repeats=1, trace=False, **measured))  # type: ignore[arg-type]
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), **measured)
    assert "% less energy." in found.verdicts[0]
    energy = next(figure for figure in found.figures if figure.name == "compare-energy")
    assert energy.draw is not None
    assert energy.caption.startswith("Measured. At best ") and energy.caption.endswith("% less, on 2 ranks.")


def without_power(folder: Path, *numbers: int) -> None:
    """Some lines, as where meters could not be read."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for number in numbers:
        lines[number]["figures"] |= {"energy_j": None, "power_w": None, "power_provenance": "none"}
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_modelled_watts_are_called_so_where_a_repeat_has_none(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=2, trace=False))
    without_power(tmp_path, 1, 3)
    found = content_of(read_folder(tmp_path), None)
    energy = next(figure for figure in found.figures if figure.name == "energy")
    assert energy.title == "Energy against time (modelled)" and "no evidence of a saving." in energy.caption
    assert 'data-name="energy, modelled [kJ]"' in found.tables[0][1]
    assert {item.name: item.value for item in found.trust}["power"] == "modelled"
    assert found.verdicts[0].endswith("power modelled, not measured.")


def test_whole_nodes_are_called_so_where_a_repeat_or_a_point_has_no_power(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=2, trace=False, power="measured-node"))
    without_power(tmp_path, 0, 1, 3)
    found = content_of(read_folder(tmp_path), None)
    assert {item.name: item.value for item in found.trust}["power"] == "measured, whole nodes"
    assert next(figure for figure in found.figures if figure.name == "energy").caption.endswith(
        "Measured for whole nodes. Not known in 3 of 4 runs and shown of the others."
    )
    assert found.verdicts[0].endswith("power measured in part of the runs.")


def test_nodes_and_their_parts_are_measured_and_not_compared(tmp_path: Path) -> None:
    make_study(tmp_path / "fast", Shape(ranks=(1, 2), repeats=1, trace=False, power="measured-component"))
    found = content(tmp_path / "pandas", tmp_path / "fast", loaders=("pandas",), ranks=(1, 2), power="measured-node")
    assert found.verdicts[0].endswith("energy is not measured alike and not compared.")
    assert "not measured alike: not compared" in found.tables[0][1]
    assert "modelled" not in next(figure for figure in found.figures if figure.name == "compare-energy").reason


def test_variants_within_one_study_are_compared(tmp_path: Path) -> None:
    found = content(tmp_path, ranks=(1, 2), loaders=("pandas", "fast"))
    assert next(figure for figure in found.figures if figure.name == "efficiency").caption.startswith("Of fast. Shared work, against ")
    assert found.verdicts[0].startswith("Fast instead of pandas: ")
    assert found.figures[0].name == "compare"


def test_trust_counts_failures_and_repeats(tmp_path: Path) -> None:
    found = content(tmp_path, repeats=3, failures=((4, 1), (16, 0)))
    chips = {item.name: (item.value, item.level) for item in found.trust}
    assert chips["failed runs"] == ("2 of 15", "bad")
    assert chips["repeats"] == ("2 to 3", "care")
    assert chips["power"] == ("modelled", "care")
    assert chips["energy known"] == ("in all runs", "good")
    assert chips["sampler"] == ("0.31% of a core", "good")
    assert chips["clock error"] == ("not known", "none")
    assert [note for note in found.notes if "was killed" in note and "console.txt" in note]


def test_a_busy_machine_and_uncommitted_changes_are_told(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False))
    about = json.loads((tmp_path / "study.json").read_text())
    about["git"]["changed"] = True
    about["environment"]["load_average"] = [40.0, 1.0, 1.0]
    (tmp_path / "study.json").write_text(json.dumps(about))
    chips = {item.name: item for item in content_of(read_folder(tmp_path), None).trust}
    assert (chips["machine"].value, chips["machine"].level) == ("busy", "care") and "when it began" in chips["machine"].words
    assert chips["source"].value.endswith(" + changes")


@pytest.mark.parametrize(("most", "value"), [(0.3, "busy"), (0.01, "quiet")])
def test_what_ran_beside_a_point_is_told_whatever_the_load_was_before(tmp_path: Path, most: float, value: str) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line, share in zip(lines, (0.0, most)):
        line["figures"]["others_share"] = share
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (chip,) = [item for item in content_of(read_folder(tmp_path), None).trust if item.name == "machine"]
    assert chip.value == value and "while a run lasted" in chip.words


def test_a_script_of_the_user_s_is_told_what_it_waits_for(tmp_path: Path) -> None:
    """It marks no phases: what is known is the time, and what its trace has shown."""
    make_study(tmp_path, Shape(ranks=(1, 2), repeats=1, trace=False, power="none"))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line, total_s, exposed_s in zip(lines, (40.0, 35.0), (0.0, 14.0)):
        line["figures"] = {"total_s": total_s, "exposed_s": exposed_s, "wait_s": 0.0, "data_stall_s": 0.0}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (verdict,) = content_of(read_folder(tmp_path), None).verdicts
    assert "57% on 2; waiting for allreduce costs most (40% of the time on 2)" in verdict


def test_others_tables_without_totals_are_shown_by_what_they_have(tmp_path: Path) -> None:
    make_study(tmp_path, Shape(ranks=(1, 2, 4), repeats=1, trace=False, power="none"))
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["figures"] = {name: line["figures"][name] for name in ("train_s", "test_accuracy")} | {"loss": float("nan")}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = content_of(read_folder(tmp_path), None)
    assert found.verdicts[0].startswith("Training alone: efficient to 4 ranks, the most that were run (9")
    figures = {figure.name: figure for figure in found.figures}
    assert (figures["time"].title, figures["time"].reason) == ("Training time against ranks", "")
    assert (figures["efficiency"].title, figures["efficiency"].reason) == ("Efficiency and losses of training", "")
