"""The sentence on top says what limits a run, in 120 characters, and never more than repeats support."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.results.analysis import Analysis, analyse_study, compare_analyses
from farandole.results.numbers import seconds
from farandole.results.reading import read_folder
from farandole.results.verdict import LONGEST, Verdict, comparison_verdict
from farandole.study.importing import import_figures
from studyfolder import Shape, changed, make_loaders, make_run, make_study

Line = dict[str, Any]


def analysed(folder: Path, change: Callable[[Line], None] = lambda line: None, **shape: Any) -> Analysis:
    make_study(folder, Shape(**{"trace": False, "cores": 64, **shape}))
    return analyse_study(changed(folder, change))


def told(folder: Path, change: Callable[[Line], None] = lambda line: None, **shape: Any) -> Verdict:
    """The last verdict: on the study as a whole."""
    return analysed(folder, change, **shape).verdict()


def compared(before: Path | Analysis, after: Path | Analysis) -> Verdict:
    sides = [one if isinstance(one, Analysis) else analyse_study(one) for one in (before, after)]
    found = compare_analyses(*sides)
    assert found is not None
    return comparison_verdict(found)


def times_by_ranks(times: dict[int, Sequence[float]]) -> Callable[[Line], None]:
    """What is known of each repeat is its total."""
    return lambda line: line.update(figures={"total_s": times[line["settings"]["ranks"]][line["repeat"]]})


def around(middle: float, noise: float, repeats: int = 3, seed: int = 7) -> list[float]:
    """Repeats of one time."""
    source = random.Random(seed)
    return [middle * source.gauss(1.0, noise) for _ in range(repeats)]


# What scaling comes to.


def test_where_efficiency_ends_and_why(tmp_path: Path) -> None:
    times = {1: 100.0, 2: 52.0, 4: 29.0, 8: 20.0}

    def loads_as_long(line: Line) -> None:
        total_s = times[line["settings"]["ranks"]] + 0.01 * line["repeat"]
        line["figures"] = {"total_s": total_s, "load_s": 5.0, "train_s": total_s - 5.0}

    found = told(tmp_path, loads_as_long, ranks=tuple(times), power="none")
    assert found.headline == "Efficient to 4 ranks, 86% (86% to 86%), not beyond: 62% (62% to 63%) on 8; loading data costs most (22% of the time)."
    assert found.caveats == ["Efficiency of training alone on 8 ranks: 79%, of the whole run 62%.", "Power not known."]


def test_what_runs_do_not_tell_apart_is_no_cause(tmp_path: Path) -> None:
    exact = {1: [100.0, 100.1, 99.9], 8: [20.0, 20.1, 19.9]}
    assert told(tmp_path, times_by_ranks(exact), ranks=(1, 8)).headline == "Not efficient beyond 1 rank: 62% (62% to 63%) on 8."


def test_what_does_not_fit_on_top_is_said_below(tmp_path: Path) -> None:
    times = {1024: 100.0, 2048: 52.0, 4096: 29.0, 8192: 20.0, 16384: 15.0}
    found = told(tmp_path, times_by_ranks({ranks: around(time, 0.001) for ranks, time in times.items()}), ranks=tuple(times), power="none")
    assert found.headline.startswith("Efficient to 4,096 ranks, 86% (8") and found.headline.endswith(" on 8,192.")
    assert found.caveats[0].startswith("Efficiency on 16,384 ranks: 42% (4")

    def waits(line: Line) -> None:
        total_s = times[line["settings"]["ranks"]] + 0.01 * line["repeat"]
        line["figures"] = {"total_s": total_s, "train_s": total_s, "exposed_s": total_s / 2, "wait_s": total_s / 2}

    found = told(tmp_path, waits, ranks=tuple(times), power="none")
    assert found.headline.startswith("Efficient to ") and found.caveats[0].startswith("Waiting for stragglers costs most (")


def test_all_rank_counts_may_be_efficient(tmp_path: Path) -> None:
    found = told(tmp_path, kind="weak", ranks=(1, 2, 4), power="measured-node")
    assert found.headline.startswith("Efficient to 4 ranks, the most that were run: ") and found.caveats[-1] == "Power measured."


def test_none_may_be(tmp_path: Path) -> None:
    found = told(tmp_path, ranks=(1, 16), power="none", accuracy=False)
    assert found.headline.startswith("Not efficient beyond 1 rank: 4")


def test_what_the_interval_leaves_open_is_not_decided(tmp_path: Path) -> None:
    times = {1: around(100.0, 0.05), 2: around(62.0, 0.05, seed=8)}
    headline = told(tmp_path, times_by_ranks(times), ranks=(1, 2), power="none").headline
    assert headline.startswith("Efficiency on 2 ranks is ") and "80% is neither reached nor missed for sure" in headline


def test_nearly_efficient_is_not_rounded_up_to_it(tmp_path: Path) -> None:
    times = {1: [100.0, 100.01, 99.99], 2: [62.7, 62.71, 62.69]}
    assert told(tmp_path, times_by_ranks(times), ranks=(1, 2), power="none").headline.startswith("Not efficient beyond 1 rank: 79.7% (79.7% to 79.8%) on 2")


def test_of_single_runs_nothing_is_claimed(tmp_path: Path) -> None:
    found = told(tmp_path, times_by_ranks({1: [100.0], 2: [80.0]}), ranks=(1, 2), repeats=1, power="none")
    assert found.headline.startswith("100\u202fs on 1 rank, 80.0\u202fs on 2: efficiency 62%")
    assert "One run each: too few repeats to tell a difference (--repeats 3); nothing is claimed of the efficiency." in found.caveats


def test_a_single_run_among_repeats_is_called_so(tmp_path: Path) -> None:
    found = told(tmp_path, ranks=(1, 2), repeats=2, failures=((2, 1),))
    assert any(caveat.startswith("One run of some: too few repeats") for caveat in found.caveats)


def test_training_is_told_beside_a_whole_that_scales_worse(tmp_path: Path) -> None:
    def mostly_start(line: Line) -> None:
        line["figures"] = {"total_s": 12.0 + 1.0 / line["settings"]["ranks"] + 0.01 * line["repeat"], "train_s": 1.0 / line["settings"]["ranks"]}

    assert "Efficiency of training alone on 2 ranks: 100%, of the whole run 52%." in told(tmp_path, mostly_start, ranks=(1, 2)).caveats


def test_ranks_that_share_cores_say_nothing_of_scaling(tmp_path: Path) -> None:
    found = told(tmp_path, ranks=(1, 2, 4), cores=2)
    assert found.headline.startswith("Efficient to 2 ranks, the most that were run")
    assert "4 ranks shared cores (oversubscribed) and say nothing of scaling." in found.caveats


def test_no_run_has_finished(tmp_path: Path) -> None:
    assert str(told(tmp_path, ranks=(2,), repeats=1, failures=((2, 0),))) == "No run has finished: rank 1 of 2 was killed (signal 9)."


def test_a_script_of_the_user_s_is_told_what_it_waits_for(tmp_path: Path) -> None:
    """It marks no phases: what is known is the time, and what its trace has shown."""
    known = {1: (40.0, 0.0), 2: (35.0, 14.0)}

    def alone(line: Line) -> None:
        total_s, exposed_s = known[line["settings"]["ranks"]]
        line["figures"] = {"total_s": total_s + 0.1 * line["repeat"], "exposed_s": exposed_s, "wait_s": 0.0, "data_stall_s": 0.0}

    headline = told(tmp_path, alone, ranks=(1, 2), power="none").headline
    assert headline.startswith("Not efficient beyond 1 rank: 57% (57% to 57%) on 2; waiting for allreduce costs most (40% of the time)")


def test_others_tables_without_totals_are_told_by_what_they_have(tmp_path: Path) -> None:
    def training_alone(line: Line) -> None:
        line["figures"] = {name: line["figures"][name] for name in ("train_s", "test_accuracy")} | {"loss": float("nan")}

    headline = told(tmp_path, training_alone, ranks=(1, 2, 4), power="none").headline
    assert headline.startswith("Training alone: efficient to 4 ranks, the most that were run: 9")


# Differences: claimed where repeats support them.


def of_loaders(**sides: Sequence[float]) -> Callable[[Line], None]:
    """Totals by loader and repeat; loading makes the difference."""

    def change(line: Line) -> None:
        total_s = sides[line["settings"]["loader"]][line["repeat"]]
        line["figures"] |= {"total_s": total_s, "load_s": total_s - 15.0, "train_s": 14.0, "broadcast_s": 0.1, "preprocess_s": 0.1, "evaluate_s": 0.1}

    return change


def test_two_settings_30_percent_apart_are_told_with_the_interval(tmp_path: Path) -> None:
    sides = {"pandas": around(40.0, 0.02), "fast": around(28.0, 0.02, seed=8)}
    found = analysed(tmp_path, of_loaders(**sides), ranks=(4,), loaders=tuple(sides))
    headline = found.verdicts()[-1].headline
    assert headline.startswith("Fastest with loader fast: 2") and "× as fast as pandas (1." in headline and headline.endswith("×).")
    low, high = (float(end) for end in headline.partition("pandas (")[2].rstrip("×).").split(" to "))
    assert low < 40.0 / 28.0 < high and 1.2 < low < high < 1.7


@pytest.mark.parametrize("seed", range(4))
def test_repeats_that_do_not_differ_claim_nothing(tmp_path: Path, seed: int) -> None:
    noise = {name: around(30.0, 0.05, seed=10 * seed + at) for at, name in enumerate(("pandas", "fast"))}
    by_name = analysed(tmp_path / "names", of_loaders(**noise), ranks=(4,), loaders=tuple(noise))
    assert by_name.verdict().headline.endswith("with pandas: no difference that these runs could tell.") or "with fast: no diff" in by_name.verdict().headline
    by_ranks = analysed(tmp_path / "ranks", of_loaders(**noise), ranks=(1, 2), loaders=tuple(noise))
    first = by_ranks.verdicts()[0]
    assert first.headline in [f"{one} instead of {other}: no difference on 2 ranks that these runs could tell." for one, other in (("Fast", "pandas"), ("Pandas", "fast"))]
    for words in ("less", "more", "fastest", "most", "×"):
        assert words not in str(first)


@pytest.mark.parametrize(("repeats", "words"), [(1, "too few repeats to tell"), (3, "no difference that these runs could tell")])
def test_batches_that_take_the_same_time_have_no_fastest(tmp_path: Path, repeats: int, words: str) -> None:
    def equal(line: Line) -> None:
        line["figures"]["total_s"] = 20.0 + 0.5 * ((line["repeat"] + line["settings"]["batch_size"] // 10) % 3)

    headline = told(tmp_path, equal, kind="batch", ranks=(4,), batch_sizes=(10, 20, 40), repeats=repeats).headline
    assert headline.startswith("Time 20.") and headline.endswith(f": {words}.")


def test_the_fastest_of_many_equal_ones_is_not_claimed(tmp_path: Path) -> None:
    """The best and the worst of twenty differ by chance: each of 190 pairs could have been picked."""
    batches = tuple(range(10, 210, 10))
    noise = {batch: around(20.0, 0.08, seed=batch) for batch in batches}
    medians = sorted(sorted(times)[1] for times in noise.values())
    assert medians[-1] / medians[0] > 1.1
    found = told(tmp_path, lambda line: line["figures"].update(total_s=noise[line["settings"]["batch_size"]][line["repeat"]]), kind="batch", ranks=(4,), batch_sizes=batches)
    assert found.headline.endswith("no difference that these runs could tell.")


def test_the_fastest_is_compared_along_the_axis_alone(tmp_path: Path) -> None:
    """On fewer ranks, the other batch size would be slower for another reason."""
    found = told(tmp_path, kind="batch", ranks=(2, 8), batch_sizes=(10, 80), rates=(0.001,))
    assert found.headline.startswith("With 8 ranks, learning rate 0.008, fastest with batch size 80: ")
    assert any(caveat.startswith("With 2 ranks, learning rate 0.002, fastest with batch size 80: ") for caveat in found.caveats)


def variants(folder: Path, varied: str = "loader", **sides: list[dict[str, float]]) -> Verdict:
    """On two variants of one study on 2 ranks, each with the figures of its runs."""

    def change(line: Line) -> None:
        own = {"total_s": 20.0, "load_s": 1.0, "preprocess_s": 0.5, "broadcast_s": 0.1, "train_s": 15.0, "evaluate_s": 0.5, "energy_j": 1000.0}
        side = sides[line["settings"]["loader"]]
        line["settings"] = {varied if name == "loader" else name: value for name, value in line["settings"].items()}
        if line["repeat"] < len(side):
            line["figures"] |= own | side[line["repeat"]]
        else:
            line |= {"status": "failed", "reason": "not run", "figures": {}}

    return analysed(folder, change, ranks=(1, 2), loaders=tuple(sides), power="measured-node").verdicts()[0]


def spread(step: float, *, energy_j: float = 1000.0, **figures: float) -> list[dict[str, float]]:
    """Three runs, of which each takes `step` longer; joules grow by a thousandth."""
    return [{**figures, "total_s": figures["total_s"] + step * at, "energy_j": energy_j * (1 + 0.001 * at)} for at in range(3)]


def test_single_runs_of_variants_are_shown_and_not_judged(tmp_path: Path) -> None:
    found = variants(tmp_path, pandas=[{"total_s": 40.0, "load_s": 21.0}], fast=[{}])
    assert found.headline == "Fast instead of pandas: 40.0\u202fs → 20.0\u202fs on 2 ranks, too few repeats to tell."
    assert "One run each: how far runs differ by themselves is not known (--repeats 3)." in found.caveats
    assert found.caveats[-1] == "Energy: too few repeats to tell a difference."


def test_a_single_run_beside_repeats_is_called_so(tmp_path: Path) -> None:
    found = variants(tmp_path, pandas=spread(0.1, total_s=40.0), fast=[{}])
    assert "too few repeats to tell" in found.headline
    assert "One run of fast: how far it would differ from others is not known (--repeats 3)." in found.caveats


@pytest.mark.parametrize(
    ("total_s", "train_s", "load_s", "how"),
    [
        (23.6, 19.6, 1.0, "That does not explain the change of the total, "),
        (18.0, 14.0, 1.0, "That explains 49% of the change of the total, "),
        (18.0, 23.0, 11.0, "The total changed by less, "),
    ],
)
def test_a_total_that_loading_does_not_explain_is_no_gain_or_loss_of_a_loader(
    tmp_path: Path, total_s: float, train_s: float, load_s: float, how: str
) -> None:
    fast = spread(0.0, total_s=total_s, load_s=0.02, train_s=train_s)
    found = variants(tmp_path, pandas=spread(0.01, total_s=20.0, load_s=load_s), fast=fast)
    assert found.headline == f"Fast instead of pandas: loading {seconds(load_s)} → 20.0\u202fms on 2 ranks."
    assert found.caveats == [
        f"{how}20.0\u202fs → {total_s:.1f}\u202fs (training 15.0\u202fs → {train_s:.1f}\u202fs).", "Energy follows the time and is not compared.",
    ]  # fmt: skip


def test_a_broadcast_that_waits_for_slow_loading_is_a_part_of_what_it_costs(tmp_path: Path) -> None:
    found = variants(tmp_path, pandas=spread(0.1, total_s=40.0, load_s=5.0, broadcast_s=16.0), fast=spread(0.1, total_s=20.0))
    assert found.headline == "Fast instead of pandas: 50% less time on 2 ranks (49% to 50%)."
    assert "Broadcast changed most, 16.0\u202fs → 100\u202fms." in found.caveats


def test_other_settings_may_change_every_phase(tmp_path: Path) -> None:
    found = variants(tmp_path, varied="framework", torch=spread(0.1, total_s=20.0), jax=spread(0.1, total_s=23.6, train_s=19.3))
    assert found.headline.startswith("Framework torch instead of framework jax: 15% less time on 2 ranks (1")
    assert "Training changed most, 19.3\u202fs → 15.0\u202fs." in found.caveats


def test_joules_are_told_as_far_as_repeats_tell_them_apart(tmp_path: Path) -> None:
    slow = [{"total_s": 30.0 + at, "load_s": 11.0 + at, "energy_j": 1000.0 + 300 * at} for at in range(3)]
    told_of = [
        variants(tmp_path / str(joules), pandas=slow, fast=spread(0.1, total_s=20.0, energy_j=joules)).caveats[-1] for joules in (1000.0, 300.0)
    ]
    assert told_of[0] == "No difference of the energy that these runs could tell."
    assert told_of[1].startswith("76% less energy (") and told_of[1].endswith("%).")


# Accuracy: as far as seeds tell it.


def reached(accuracies: dict[int, Sequence[float]], *, seeds: bool = True) -> Callable[[Line], None]:
    """By ranks and repeat, which is the seed as well."""

    def change(line: Line) -> None:
        line["settings"] |= {"seed": line["repeat"] if seeds else 2017}
        line["figures"]["test_accuracy"] = accuracies[line["settings"]["ranks"]][line["repeat"]]

    return change


def falls(found: Verdict) -> list[str]:
    return [caveat for caveat in found.caveats if "accuracy falls" in caveat]


FALLEN = {1: [0.98, 0.985, 0.975, 0.982, 0.978], 4: [0.88, 0.885, 0.875, 0.882, 0.878]}


def test_a_fall_of_accuracy_is_claimed_where_seeds_support_it(tmp_path: Path) -> None:
    assert falls(told(tmp_path, reached(FALLEN), ranks=(1, 4), repeats=5)) == ["Test accuracy falls from 0.98 to 0.88 on 4."]


def test_a_single_seed_claims_no_fall_of_accuracy(tmp_path: Path) -> None:
    assert falls(told(tmp_path / "one", reached({1: [0.99], 4: [0.5]}), ranks=(1, 4), repeats=1)) == []
    assert falls(told(tmp_path / "same", reached(FALLEN, seeds=False), ranks=(1, 4), repeats=5)) == [], "five runs of one seed are one"


def test_a_fall_within_what_seeds_differ_by_is_none(tmp_path: Path) -> None:
    noise = {1: [0.98, 0.90, 0.95, 0.97, 0.93], 4: [0.92, 0.97, 0.91, 0.96, 0.90]}
    assert falls(told(tmp_path, reached(noise), ranks=(1, 4), repeats=5)) == []


@pytest.mark.parametrize(("seeds", "ends"), [(True, "."), (False, ": too few seeds to tell a difference.")])
def test_the_best_model_is_told_as_far_as_seeds_tell_it(tmp_path: Path, seeds: bool, ends: str) -> None:
    values = {10: [0.96, 0.961, 0.959], 80: [0.90, 0.901, 0.899]}

    def change(line: Line) -> None:
        line["settings"] |= {"seed": line["repeat"] if seeds else 2017}
        line["figures"]["test_accuracy"] = values[line["settings"]["batch_size"]][line["repeat"]]

    found = told(tmp_path, change, kind="batch", ranks=(4,), batch_sizes=(10, 80))
    assert f"Test accuracy 0.960 with 10, 0.900 with 80{ends}" in found.caveats


def emulated(folder: Path, accuracies: dict[tuple[str, int], Sequence[float]], kind: str = "strong") -> Analysis:
    """A study of rules for the rate, each with the accuracies its seeds have reached as so many ranks; 0: as those there are."""
    (line,) = read_folder(make_study(folder, Shape(ranks=(1,), repeats=1, trace=False, kind=kind))).raw
    lines = []
    for at, ((rule, as_ranks), values) in enumerate(accuracies.items()):
        for seed, accuracy in enumerate(values):
            settings = {**line["settings"], "ranks": min(as_ranks, 2) or 2, "emulate_ranks": as_ranks, "lr_scaling": rule, "seed": seed}
            figures = {**line["figures"], "test_accuracy": accuracy, "total_s": 100.0 / (as_ranks or at + 1)}
            lines.append({**line, "key": f"{at}-{seed}", "settings": settings, "figures": figures, "marks": ["emulated ranks", "modelled power"]})
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**about, "points": lines}))
    return analyse_study(folder)


def near(value: float) -> list[float]:
    return [value, value + 0.002, value - 0.002, value + 0.001, value - 0.001]


RULES = {("linear", 1): 0.99, ("linear", 8): 0.988, ("linear", 48): 0.6, ("none", 1): 0.99, ("none", 8): 0.989, ("none", 48): 0.989}


def test_emulated_ranks_tell_of_accuracy_and_never_of_speed(tmp_path: Path) -> None:
    """On one rank or on two, as they divide: those are not what is varied."""
    found = emulated(tmp_path, {one: near(value) for one, value in RULES.items()})
    assert found.verdict().headline == "Test accuracy holds to 8 ranks with rate scaling linear (0.99) and is 0.60 on 48."
    assert found.verdict().caveats == ["Is not seen to fall to 48 ranks with rate scaling none (0.99 to 0.99).", "Power modelled, not measured."]
    assert not found.all_scalings and compare_analyses(found, found) is None


def test_emulated_ranks_with_single_seeds_claim_no_fall(tmp_path: Path) -> None:
    found = emulated(tmp_path, {one: [value] for one, value in RULES.items()}).verdict()
    assert found.headline.endswith("with rate scaling linear: one seed each, too few to tell a difference.")
    assert "falls" not in str(found) and "holds" not in str(found)


def test_one_number_of_emulated_ranks_tells_nothing_of_speed_either(tmp_path: Path) -> None:
    single = emulated(tmp_path / "single", {("linear", 48): [0.6], ("sqrt", 48): [0.91], ("none", 48): [0.975]}).verdict()
    assert single.headline == "Trained as 48 ranks, test accuracy is 0.97 with rate scaling none and 0.60 with linear."
    assert single.caveats == ["Which is better cannot be told from so few seeds.", "Power modelled, not measured."]
    several = emulated(tmp_path / "several", {("linear", 48): near(0.6), ("none", 48): near(0.975)}).verdict()
    assert several.caveats == ["Power modelled, not measured."]


# Runs, folders and readers.


def test_a_single_run(tmp_path: Path) -> None:
    found = analyse_study(make_run(tmp_path, trace=False)).verdict()
    assert found.headline.startswith("4 ranks trained for 8 epochs in ") and "; training took " in found.headline
    assert found.caveats == ["Test accuracy 0.981.", "Power not known."]


def test_a_run_that_a_timeout_has_ended_trained_for_the_epochs_it_has_done(tmp_path: Path) -> None:
    path = make_run(tmp_path, trace=False) / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "plan": {**record["plan"], "epochs": 384}, "epochs": record["epochs"][:3]}))
    assert analyse_study(tmp_path).verdict().headline.startswith("4 ranks trained for 3 epochs in ")


def test_an_accuracy_on_data_that_has_steered_the_training_says_so(tmp_path: Path) -> None:
    path = make_run(tmp_path, trace=False) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "validation": {"on": "test set", "steers": "learning rate"}}))
    assert analyse_study(tmp_path).verdict().caveats[:2] == [
        "Test accuracy 0.981.", "Accuracy: validated on the test set, which steers the learning rate."
    ]  # fmt: skip


def test_a_comparison_of_folders_claims_no_modelled_saving(tmp_path: Path) -> None:
    before, after = analysed(tmp_path / "a", loaders=("pandas",)), analysed(tmp_path / "b")
    found = compared(before, after)
    assert found.headline.startswith("Fast instead of pandas: ") and "less time on 16 ranks (" in found.headline
    assert found.caveats[0].startswith("Loading changed most, ") and found.caveats[-1] == "Energy is modelled and not compared."


def test_a_comparison_is_of_ranks_that_had_cores_of_their_own(tmp_path: Path) -> None:
    found = compared(analysed(tmp_path / "a", loaders=("pandas",), ranks=(1, 2, 4), cores=2), analysed(tmp_path / "b", ranks=(1, 2, 4), cores=2))
    assert "less time on 2 ranks" in found.headline
    assert "4 ranks shared cores (oversubscribed) and are left aside." in found.caveats


def test_a_comparison_of_ranks_that_all_shared_cores_says_so(tmp_path: Path) -> None:
    found = compared(analysed(tmp_path / "a", loaders=("pandas",), ranks=(2, 4), cores=1), analysed(tmp_path / "b", ranks=(2, 4), cores=1))
    assert "less time on 4 ranks" in found.headline
    assert "Ranks shared cores (oversubscribed), and a machine that has enough may differ." in found.caveats


def test_studies_of_several_series_are_compared_series_by_series(tmp_path: Path) -> None:
    before = analysed(tmp_path / "a", loaders=("pandas",), ranks=(1, 2), batch_sizes=(10, 20))
    assert "less time on 2 ranks, batch size 20 (" in compared(before, analysed(tmp_path / "b", ranks=(1, 2), batch_sizes=(20, 10))).headline


def test_what_follows_from_the_ranks_is_no_name_of_a_side(tmp_path: Path) -> None:
    """The rate of each number of ranks is another one in both."""
    found = compared(analysed(tmp_path / "low", ranks=(1, 2)), analysed(tmp_path / "high", ranks=(1, 2), rates=(0.03,)))
    assert found.headline.startswith("high instead of low: "), "a folder's name is as it is"


@pytest.mark.parametrize("several", ["before", "after"])
def test_which_of_several_to_compare_is_asked_for(tmp_path: Path, several: str) -> None:
    one, two = ("pandas",), ("fast", "chunked")
    sides = [analysed(tmp_path / side, ranks=(1, 2), repeats=1, loaders=two if several == side else one) for side in ("before", "after")]
    with pytest.raises(SettingsError, match=rf"{several} has loader=fast, chunked, and the other folder has none.*--set loader=fast, .* farandole report .*{several}$"):
        compare_analyses(*sides)


def test_nodes_and_their_parts_are_measured_and_not_compared(tmp_path: Path) -> None:
    before = analysed(tmp_path / "a", loaders=("pandas",), ranks=(1, 2), power="measured-node")
    found = compared(before, analysed(tmp_path / "b", ranks=(1, 2), power="measured-component"))
    assert found.caveats[-1] == "Energy is not measured alike and not compared."


def test_power_that_some_runs_lack_is_told(tmp_path: Path) -> None:
    def unread(line: Line) -> None:
        if line["repeat"]:
            line["figures"] |= {"energy_j": None, "power_w": None, "power_provenance": "none"}

    assert told(tmp_path / "a", unread, ranks=(1, 2)).caveats[-1] == "Power modelled, not measured."
    assert told(tmp_path / "b", unread, ranks=(1, 2), power="measured-node").caveats[-1] == "Power measured in part of the runs."


def test_threads_that_an_older_version_did_not_tell_are_no_name_of_a_side(tmp_path: Path) -> None:
    found = compared(analysed(tmp_path / "old", schema=1, ranks=(1, 2)), analysed(tmp_path / "new", ranks=(1, 2)))
    assert found.headline.startswith("new instead of old: ") and "None" not in str(found)


def test_studies_of_loaders_are_compared_by_what_reading_took(tmp_path: Path) -> None:
    """Not by their totals, which are mostly those of starting Python."""
    before, after = (make_loaders(tmp_path / name, loaders=("pandas", "fast")) for name in ("before", "after"))
    changed(after, lambda line: line["figures"].update(load_s=line["figures"]["load_s"] / 2))
    headline = compared(before, after).headline
    assert headline.startswith("after instead of before: 50% less loading time with loader ")
    assert "changed most" not in str(compared(before, after))


# On one line.

LONG = "nt3-strong-scaling-on-the-large-partition-of-the-machine-" * 4


def verdicts_of_all_kinds(root: Path) -> dict[str, list[Verdict]]:
    words = {"power": "measured-node", "trace": False}
    many = Shape(ranks=(4, 8, 16), loaders=("pandas", "fast", f"own-{LONG}"), batch_sizes=(10, 20, 80), **words)  # type: ignore[arg-type]
    folders = {
        "strong": make_study(root / "strong", Shape(ranks=(1, 2, 4, 1024, 4096), cores=64, **words)),  # type: ignore[arg-type]
        "single": make_study(root / "single", Shape(ranks=(1, 2, 4, 1024, 4096), repeats=1, cores=64, **words)),  # type: ignore[arg-type]
        "weak": make_study(root / "weak", Shape(kind="weak", **words)),  # type: ignore[arg-type]
        "many": make_study(root / "many", many),
        "batch": make_study(root / "batch", Shape(kind="batch", ranks=(2, 8), batch_sizes=(10, 80), **words)),  # type: ignore[arg-type]
        "rates": make_study(root / "rates", Shape(kind="lr", ranks=(8,), rates=(0.001, 0.01), **words)),  # type: ignore[arg-type]
        "names": make_study(root / "names", Shape(ranks=(4,), loaders=("fast", f"own-{LONG}"), **words)),  # type: ignore[arg-type]
        "failed": changed(make_study(root / "failed", Shape(ranks=(1,), repeats=1, failures=((1, 0),), **words)), lambda line: line.update(reason=LONG)),  # type: ignore[arg-type]
        "loaders": make_loaders(root / "loaders", benchmarks=("nt3", "p1b2")),
        "loaders, once": make_loaders(root / "once", repeats=1),
        "run": make_run(root / "run", trace=False),
    }
    found = {name: analyse_study(folder).verdicts() for name, folder in folders.items()}
    found["emulated"] = emulated(root / "emulated", {one: near(value) for one, value in RULES.items()}).verdicts()
    found["rules"] = emulated(root / "rules", {(f"{rule}-{LONG}", 48): [value] for (rule, _), value in RULES.items()}).verdicts()
    sides = [analyse_study(make_study(root / f"{side}-{LONG[:200]}", Shape(ranks=(1, 2), repeats=repeats, **words))) for side, repeats in (("a", 1), ("b", 1), ("c", 3), ("d", 3))]  # type: ignore[arg-type]
    found["folders"] = [compared(one, other) for one, other in pairwise(sides)]
    found["nothing in common"] = [compared(sides[0], folders["failed"])]
    found["imported"] = analyse_study(import_figures("summit-2019-table2", root / "imported", None).path).verdicts()
    return found


def test_every_headline_fits_on_one_line_and_loses_nothing(tmp_path: Path) -> None:
    found = verdicts_of_all_kinds(tmp_path)
    verdicts = [(name, one) for name, several in found.items() for one in several]
    assert [(name, one.headline) for name, one in verdicts if not 20 < len(one.headline) <= LONGEST or "\n" in one.headline] == []
    assert [(name, one.headline) for name, one in verdicts if not one.headline.endswith((".", "…"))] == []
    assert all(one.caveats for name, one in verdicts if one.headline.endswith("…")), "all of it stands below"
    of_a_side = [one.of(f"Before, {LONG}") for _, one in verdicts]
    assert max(len(one.headline) for one in of_a_side) <= LONGEST
    assert LONG[:200] in str(found["folders"][0])
