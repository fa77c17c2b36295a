"""Predictions from studies: intervals that hold, what-ifs, joules, and what cannot be predicted from."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from farandole.comm.node.algorithms import AlgorithmTable
from farandole.errors import DataError, SettingsError
from farandole.predict.check import check
from farandole.predict.curves import MANY_NODES
from farandole.predict.extrap import as_extrap
from farandole.predict.next_point import next_points
from farandole.predict.parts import measured_of
from farandole.predict.prediction import Asked, models_of, predict
from farandole.predict.synthetic import FITTED_NODES, Machine, made_up
from farandole.predict.what_if import parse
from farandole.results.reading import Study
from farandole.results.schema import Result
from farandole.study.importing import paper_study, papers_tables

MACHINE = Machine(
    ranks_a_node=4, collective="ring", compute_s=0.2, within_s=0.004, latency_s=4e-4, bandwidth_s=0.03, jitter=0.01, tail="exponential",
    load_s=6.0, contention=0.1, broadcast_s=0.4, start_s=2.0, noise=0.005,
)  # fmt: skip


def study(machine: Machine = MACHINE, *, told: bool = True, change: Callable[[dict[str, Any]], None] | None = None) -> Study:
    """Made up, each line as `change` leaves it."""
    found = made_up(machine, Random(7), told=told)
    for line in found.raw if change else ():
        assert change is not None
        change(line)
    return replace(found, results=[Result.of(Path(), line) for line in found.raw])


def of_counts(*counts: int) -> Study:
    found = study()
    lines = [line for line in found.raw if line["settings"]["nodes"] in counts]
    return replace(found, raw=lines, results=[Result.of(Path(), line) for line in lines])


def test_what_is_predicted_holds_what_the_machine_would_take() -> None:
    document = predict(study(), Asked(ranks=[64, 2048]))
    for one in document["predictions"]:
        truth = MACHINE.total_s(one["ranks"] // 4)
        assert one["total_s"]["low"] < truth < one["total_s"]["high"]
        assert one["total_s"]["median"] == pytest.approx(truth, rel=0.1)
        assert sum(part["median"] for part in one["parts"].values()) == pytest.approx(one["total_s"]["median"], rel=0.05)
        assert one["efficiency"]["median"] == pytest.approx(MACHINE.total_s(1) / truth, rel=0.1)
    near, far = document["predictions"]
    assert far["limited_by"]["part"] == "allreduce" and far["beyond"] == 64
    assert near["epoch_s"]["median"] == pytest.approx(sum(MACHINE.parts(16)[name] for name in ("compute", "allreduce", "straggler")) / 4, rel=0.1)
    assert far["total_s"]["high"] / far["total_s"]["low"] > near["total_s"]["high"] / near["total_s"]["low"]
    assert any("2,048 ranks are more than 16 times" in words for words in document["warnings"])
    held = document["fitted"][0]["held_out"]
    assert held["ranks"] == 32 and held["inside"] and abs(held["error"]) < 0.05


def test_the_same_study_gives_the_same_intervals() -> None:
    first, again = (json.dumps(predict(study(), Asked(ranks=[512]))) for _ in range(2))
    assert first == again


def test_a_higher_level_is_wider() -> None:
    low, high = (predict(study(), Asked(ranks=[512], level=level))["predictions"][0]["total_s"] for level in (0.5, 0.95))
    assert high["low"] < low["low"] < low["median"] == high["median"] < low["high"] < high["high"]


def test_repeats_that_differ_make_intervals_wider() -> None:
    """By a fifth either way: medians of three then say less, however well they happen to lie on a curve."""

    def shaken(line: dict[str, Any]) -> None:
        figures = line["figures"]
        more = figures["exposed_s"] * (0.8, 0.0, -0.8)[line["repeat"]]
        for name in ("exposed_s", "train_s", "total_s"):
            figures[name] += more

    calm, rough = (predict(study(change=change), Asked(ranks=[64]))["predictions"][0]["parts"]["allreduce"] for change in (None, shaken))
    assert rough["high"] / rough["low"] > 1.3 * calm["high"] / calm["low"]


def test_a_busy_machine_is_told() -> None:
    def busy(line: dict[str, Any]) -> None:
        line["figures"]["others_share"] = 0.5 if line["settings"]["nodes"] == 2 else 0.0

    assert any("busy machine, and used: 8 ranks" in words for words in predict(study(change=busy), Asked(ranks=[64]))["warnings"])


def test_the_collective_is_recorded_or_declared_and_never_fitted() -> None:
    recorded, unknown = predict(study(), Asked(ranks=[2048])), predict(study(told=False), Asked(ranks=[2048]))
    declared = predict(study(told=False), Asked(ranks=[2048], collective="ring"))
    assert [one["fitted"][0]["collective"] for one in (recorded, unknown, declared)] == ["ring", None, "ring"]
    assert [one["fitted"][0]["collective_from"].split(":")[0] for one in (recorded, unknown, declared)] == ["recorded by the runs", "not known", "declared"]
    assert recorded["predictions"][0]["total_s"] == declared["predictions"][0]["total_s"]
    tree = predict(study(), Asked(ranks=[2048], collective="tree"))["predictions"][0]
    assert tree["parts"]["allreduce"]["median"] < recorded["predictions"][0]["parts"]["allreduce"]["median"] / 2


@pytest.mark.parametrize(("word", "shape"), [("two-level: sliced window, scatter", "table"), ("exchange", "ring"), ("two-level: flat place, mpi", "tree")])
def test_the_engine_s_own_words_for_its_algorithms_are_known(word: str, shape: str) -> None:
    def recorded(line: dict[str, Any]) -> None:
        line["figures"]["collective"] = word

    assert predict(study(change=recorded), Asked(ranks=[64]))["fitted"][0]["collective"] == shape
    assert AlgorithmTable().many_nodes == MANY_NODES


def ratios(found: Study, *texts: str, ranks: int = 512) -> dict[str, dict[str, float]]:
    document = predict(found, Asked(ranks=[ranks], what_ifs=[parse(text) for text in texts]))
    return {one["what_if"]: one["ratio"] for one in document["what_ifs"]}


def test_what_ifs_change_what_they_are_of() -> None:
    parts, total_s = MACHINE.parts(128), MACHINE.total_s(128)
    found = ratios(study(), "network=2x", "collective=tree", "wire=bf16", "batch=40", "load=2x", "network=2x,load=2x")
    between = parts["allreduce"] - 200 * MACHINE.within_s
    assert found["network=2x"]["median"] == pytest.approx(1 - between / 2 / total_s, abs=0.02)
    assert found["batch=40"]["median"] == pytest.approx(1 - (parts["allreduce"] + parts["straggler"]) / 2 / total_s, abs=0.02)
    assert found["load=2x"]["median"] == pytest.approx(1 - parts["load"] / 2 / total_s, abs=0.02)
    assert found["wire=bf16"]["median"] == pytest.approx(1 - 200 * MACHINE.bandwidth_s * 127 / 128 / total_s, abs=0.02)
    assert found["collective=tree"]["median"] == pytest.approx(1 - 200 * (254 - 14) * MACHINE.latency_s / total_s, abs=0.05)
    assert found["network=2x,load=2x"]["median"] < min(found["network=2x"]["median"], found["load=2x"]["median"])
    assert all(one["low"] <= one["median"] <= one["high"] for one in found.values())


def two_loaders() -> Study:
    """The second reads in a third of the time."""
    slow, fast = study(), study(replace(MACHINE, load_s=2.0))
    lines = [{**line, "key": f"{line['key']}-{name}", "settings": {**line["settings"], "loader": name}} for name, one in (("slow", slow), ("fast", fast)) for line in one.raw]
    return replace(slow, raw=lines, results=[Result.of(Path(), line) for line in lines])


def test_a_what_if_that_was_measured_is_the_series_that_has_it() -> None:
    document = predict(two_loaders(), Asked(ranks=[512], what_ifs=[parse("loader=fast")]))
    assert [one["settings"] for one in document["predictions"]] == [{"loader": "fast"}, {"loader": "slow"}]
    (one,) = document["what_ifs"]  # of the slow series: the other is so already
    slow, fast = MACHINE.total_s(128), replace(MACHINE, load_s=2.0).total_s(128)
    assert one["settings"] == {"loader": "slow"} and one["ratio"]["median"] == pytest.approx(fast / slow, rel=0.03)


@pytest.mark.parametrize(
    ("text", "told"),
    [("loader=absent", "loader fast or slow"), ("network=fast", "how many times as fast"), ("wire=int3", "bf16"), ("collective=star", "two-level"), ("batch=many", "how many samples")],
)
def test_an_impossible_what_if_says_what_there_is(text: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        ratios(two_loaders(), text)


def test_where_a_table_has_epochs_alone_a_tree_s_latency_is_not_told_from_the_rest() -> None:
    table = paper_study(papers_tables()["summit-2019-table6"])
    ring = predict(table, Asked(ranks=[3072], up_to=384, collective="ring", what_ifs=[parse("collective=tree"), parse("collective=two-level")]))
    tree, alike = ring["what_ifs"][:2]
    assert tree["ratio"]["high"] < 0.8 and alike["ratio"] == {"low": 1.0, "median": 1.0, "high": 1.0}
    with pytest.raises(SettingsError, match="does not tell the allreduce"):
        predict(table, Asked(ranks=[3072], collective="tree", what_ifs=[parse("collective=ring")]))


def with_power(line: dict[str, Any], provenance: str = "measured-node") -> None:
    """300 W a rank that computes, 100 W one that does not."""
    figures, ranks = line["figures"], line["settings"]["ranks"]
    computing = figures["train_s"] - figures["exposed_s"]
    figures |= {"energy_j": ranks * (300 * computing + 100 * (figures["total_s"] - computing)), "power_provenance": provenance}


def test_joules_follow_two_levels_of_power() -> None:
    found = predict(study(change=with_power), Asked(ranks=[512]))["predictions"][0]
    parts = MACHINE.parts(128)
    truth = 512 * (300 * parts["compute"] + 100 * (MACHINE.total_s(128) - parts["compute"]))
    assert found["energy_j"]["low"] < truth < found["energy_j"]["high"] and found["energy_j"]["median"] == pytest.approx(truth, rel=0.1)
    assert found["energy_provenance"] == "measured-node"


def test_modelled_watts_stay_modelled() -> None:
    found = predict(study(change=lambda line: with_power(line, "modelled")), Asked(ranks=[512]))["predictions"][0]
    assert found["energy_provenance"] == "modelled"


def test_without_joules_the_reason_is_told() -> None:
    found = predict(study(), Asked(ranks=[512]))["predictions"][0]
    assert found["energy_j"] is None and found["energy_provenance"] is None and found["reasons"]["energy_j"]


def test_strong_scaling_divides_the_epochs_until_there_are_too_few() -> None:
    def strong(line: dict[str, Any]) -> None:
        line["study"] = "strong"
        figures, ranks = line["figures"], line["settings"]["ranks"]
        training = figures["train_s"]
        figures |= {"samples": 64 * figures["samples"] / ranks, "epochs": 64 * 4 / ranks, "train_s": 64 / ranks * training}
        figures |= {name: 64 / ranks * figures[name] for name in ("exposed_s", "wait_s")}
        figures["total_s"] += figures["train_s"] - training

    found = predict(replace(study(change=strong), kind="strong"), Asked(ranks=[128, 512]))["predictions"]
    parts = MACHINE.parts(32)
    training = sum(parts[name] for name in ("compute", "allreduce", "straggler"))
    assert found[0]["total_s"]["median"] == pytest.approx(MACHINE.total_s(32) - training / 2, rel=0.1)
    assert found[1]["total_s"] is found[1]["efficiency"] is found[1]["whole_s"] is None and "fewer epochs than ranks" in found[1]["reasons"]["total_s"]
    assert found[1]["epoch_s"]["median"] == pytest.approx(sum(MACHINE.parts(128)[name] for name in ("compute", "allreduce", "straggler")) / 4, rel=0.15)


def test_a_run_that_was_left_out_of_the_fit_stands_beside_its_prediction() -> None:
    document = predict(study(), Asked(ranks=[32], up_to=16))
    assert document["fitted"][0]["ranks"] == [4, 8, 12, 16] and document["predictions"][0]["beyond"] == 2
    assert document["predictions"][0]["measured_s"] == pytest.approx(MACHINE.total_s(8), rel=0.02)


def test_fewer_than_three_counts_are_refused_with_those_to_add() -> None:
    with pytest.raises(DataError, match=r"2 rank counts .* at least 3 .* Add --ranks 32,"):
        predict(of_counts(2, 4), Asked(ranks=[512]))


def test_ranks_of_one_node_say_nothing_of_a_network(tmp_path: Path) -> None:
    def on_one_node(line: dict[str, Any]) -> None:
        line["settings"]["nodes"] = 1
        line["figures"] |= {"bytes_per_step": 3e7, "messages_per_step": 4}

    with pytest.raises(DataError, match=r"one node, .*farandole bench comm"):
        predict(study(change=on_one_node), Asked(ranks=[512]))
    comm = tmp_path / "comm.json"
    pieces = [{"up_to_bytes": None, "alpha_s": 5e-5, "beta_s_per_byte": 1e-9, "points": 9, "rms_error": 0.02, "largest_error": 0.05}]
    fits = [{"collective": "allreduce", "way": "gradient", "pieces": pieces}]
    comm.write_text(json.dumps({"kind": "farandole bench comm", "schema": 1, "scopes": [{"scope": "across", "ranks": [0, 4], "nodes": 2, "fits": fits}]}))
    document = predict(study(change=on_one_node), Asked(ranks=[32, 512], comm=comm))
    here, far = (one["parts"]["allreduce"]["median"] for one in document["predictions"])
    # 16 nodes: 15 times the latency of two, and 2 * 15/16 of the bytes instead of half of that.
    assert far - here == pytest.approx(200 * (15 * 4 * 5e-5 + 15 / 16 / 0.5 * 3e7 * 1e-9), rel=0.1)
    assert any("No run has crossed the network" in words for words in document["warnings"])
    comm.write_text(json.dumps({"kind": "farandole bench comm", "schema": 1, "scopes": [{"scope": "node", "ranks": [0, 1], "nodes": 1, "fits": fits}]}))
    with pytest.raises(DataError, match="measured on one node"):
        predict(study(change=on_one_node), Asked(ranks=[512], comm=comm))


def crowded(line: dict[str, Any]) -> None:
    if line["settings"]["nodes"] >= 6:
        line["marks"] = ["oversubscribed"]


def test_oversubscribed_points_are_left_out_unless_computing_was_paced() -> None:
    document = predict(study(change=crowded), Asked(ranks=[512]))
    assert document["fitted"][0]["ranks"] == [4, 8, 12, 16] and any("not used: 24, 32 ranks" in words for words in document["warnings"])

    def paced(line: dict[str, Any]) -> None:
        crowded(line)
        line["settings"]["paced"] = 0.2

    assert predict(study(change=paced), Asked(ranks=[512]))["fitted"][0]["ranks"] == [4 * nodes for nodes in FITTED_NODES]


def not_finite(line: dict[str, Any]) -> None:
    line["figures"]["train_s"] = math.nan if line["settings"]["nodes"] == 2 else line["figures"]["train_s"]


def of_two_machines(line: dict[str, Any]) -> None:
    line["made_with"] = {"environment": {"cpu": f"Example {line['settings']['nodes'] > 2:d}"}}


def with_other_threads(line: dict[str, Any]) -> None:
    line["settings"]["threads"] = 1 + (line["settings"]["nodes"] > 2)


def emulated(line: dict[str, Any]) -> None:
    line["settings"]["emulate_ranks"] = 64


@pytest.mark.parametrize(
    ("change", "told"), [(not_finite, "train_s on 8 ranks is nan"), (of_two_machines, "mixes machines: Example 0, Example 1"), (with_other_threads, "mixes threads: 1, 2"), (emulated, "emulated")]
)
def test_what_cannot_be_predicted_from_is_refused_with_a_reason(change: Callable[[dict[str, Any]], None], told: str) -> None:
    with pytest.raises(DataError, match=told):
        predict(study(change=change), Asked(ranks=[512]))


def test_a_study_over_batches_is_refused() -> None:
    with pytest.raises(DataError, match="kind batch"):
        predict(replace(study(), kind="batch"), Asked(ranks=[512]))


def test_the_next_point_narrows_the_interval() -> None:
    (found,) = next_points(models_of(study(), Asked(ranks=[512])), [512], 0.9)
    widths = [one["width"] for one in found["candidates"]]
    assert widths == sorted(widths) and widths[0] < found["width"]
    assert found["candidates"][0]["ranks"] == 256, "the farthest that is offered tells most"


def test_extra_p_s_text_format() -> None:
    lines = as_extrap(measured_of(study())).splitlines()
    assert lines[1:4] == ["PARAMETER ranks", "POINTS (4) (8) (12) (16) (24) (32)", "METRIC seconds"]
    regions = [at for at, line in enumerate(lines) if line.startswith("REGION ")]
    assert lines[regions[0]] == "REGION run->total" and "REGION run->allreduce" in lines
    assert all(len(lines[at + 1 : at + 7]) == 6 and all(line.startswith("DATA ") for line in lines[at + 1 : at + 7]) for at in regions)
    assert [len(line.split()) for line in lines[regions[0] + 1 : regions[0] + 7]] == [4] * 6, "all repeats of the whole"


GOAL = "the time predicted"
"""The one row that is known to miss: docs/prediction.md has its figure."""


def test_the_papers_tables_are_predicted() -> None:
    rows = list(check({name: paper_study(table) for name, table in papers_tables().items()}, machines=20))
    assert len(rows) == 7
    assert [row.what for row in rows if not row.met and "made-up" not in row.what and GOAL not in row.what] == []


@pytest.mark.more
def test_made_up_machines_are_predicted() -> None:
    rows = list(check({name: paper_study(table) for name, table in papers_tables().items()}))
    assert [row.what for row in rows if not row.met and GOAL not in row.what] == []
