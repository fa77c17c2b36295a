"""Figures of timelines whose truth is known."""

import json
import time
from pathlib import Path

import pytest

from farandole.errors import DataError
from farandole.observe import timeline
from farandole.observe.analysis import analyse, as_text
from farandole.observe.chrome import metadata
from farandole.observe.part import ClockOffset, part_path

MS = 1_000_000


def record(path: Path, rank: int, size: int, spans: list[tuple], *, origin_ns: int, clock: ClockOffset | None = None) -> None:
    """Spans: (track, name, start and end in ms since the origin, arguments)."""
    timeline.start(path, rank=rank, size=size, host=f"n{rank}", origin_ns=origin_ns, clock=clock)
    for track, name, start_ms, end_ms, *args in spans:
        timeline.span(track, name, origin_ns + int(start_ms * MS), origin_ns + int(end_ms * MS), *args)
    timeline.stop()


def merged(path: Path, *ranks: list[tuple]) -> dict:
    origin_ns = time.monotonic_ns()
    for rank, spans in enumerate(ranks):
        record(path, rank, len(ranks), spans, origin_ns=origin_ns)
    timeline.merge_parts(path)
    return analyse(path)


def figures(rank: dict, *names: str) -> dict[str, float]:
    return {name: round(rank[name] * 1e3, 3) for name in names}


def test_hidden_exposed_and_waited_for(tmp_path):
    # Rank 1 is ready for the step's gradients 6 ms after rank 0, which waits for it; both are done at 30.
    ranks = [
        [
            ("training", "DATA", 0, 2),
            ("training", "BACKWARD", 5, 20),
            ("communication 1", "ALLREDUCE", 10, 18),
            ("communication 2", "ALLREDUCE", 15, 22),
            ("communication", "ALLREDUCE", 22, 30),
            ("training", "WAIT_FOR_GRADIENTS", 20, 30, {"step": 0}),
            ("training", "OPTIMIZER", 30, 33),
            ("steps", "STEP", 0, 33, {"step": 0}),
        ],
        [
            ("training", "BACKWARD", 5, 26),
            ("communication 1", "ALLREDUCE", 16, 30),
            ("training", "WAIT_FOR_GRADIENTS", 26, 30, {"step": 0}),
            ("training", "OPTIMIZER", 30, 33),
            ("steps", "STEP", 0, 33, {"step": 0}),
        ],
    ]
    found = merged(tmp_path / "t.json", *ranks)
    names = ("comm_s", "exposed_s", "hidden_s", "wait_s", "gradient_wait_s", "data_stall_s", "optimizer_s", "training_s")
    # Two threads at once are one time: communication from 10 to 30.
    assert list(figures(found["ranks"][0], *names).values()) == [20, 10, 10, 6, 6, 2, 3, 33]
    assert list(figures(found["ranks"][1], *names).values()) == [14, 4, 10, 0, 0, 0, 3, 33]
    assert [rank["steps"] for rank in found["ranks"]] == [[pytest.approx(0.033)]] * 2
    assert found["residual_s"] == 0 and found["condensed"] is None
    assert [(b["rank"], b["name"]) for b in found["bands"]] == [(0, "train"), (1, "train")]
    assert [(round(stretch["start_s"] * 1e3), stretch["name"]) for stretch in found["communication"]] == [(20, "ALLREDUCE"), (26, "ALLREDUCE")]
    json.dumps(found, allow_nan=False)


def test_collectives_by_name_are_exposed_unless_nobody_waits_for_them(tmp_path):
    ranks = [
        [
            ("broadcast.w", "NEGOTIATE_BROADCAST", 0, 50),
            ("broadcast.w", "BROADCAST", 50, 60),
            ("allreduce.x", "NEGOTIATE_ALLREDUCE", 70, 80, {"async": True}),
            ("allreduce.x", "ALLREDUCE", 80, 90, {"async": True}),
        ],
        [("broadcast.w", "NEGOTIATE_BROADCAST", 45, 50), ("broadcast.w", "BROADCAST", 50, 60)],
    ]
    found = merged(tmp_path / "t.json", *ranks)
    names = ("comm_s", "exposed_s", "hidden_s", "wait_s", "gradient_wait_s")
    assert list(figures(found["ranks"][0], *names).values()) == [20, 60, 10, 45, 0]
    assert list(figures(found["ranks"][1], *names).values()) == [10, 15, 0, 0, 0]
    assert found["ranks"][0]["training_s"] is None
    rows = {row["name"]: (row["calls"], round(row["seconds"] * 1e3, 3)) for row in found["components"]}
    assert rows["broadcast"] == (1, 10) and rows["allreduce"] == (0.5, 5)


KERAS_STEPS = [
    ("training", "DATA", 2, 10),
    ("training", "FORWARD", 10, 14),
    ("training", "BACKWARD", 14, 20),
    ("communication 1", "ALLREDUCE", 16, 26),
    ("training", "WAIT_FOR_GRADIENTS", 20, 26, {"step": 0}),
    ("training", "OPTIMIZER", 20, 28),
    ("training", "RUN", 10, 30),
    ("metric.loss", "NEGOTIATE_ALLREDUCE", 31, 32),
    ("metric.loss", "ALLREDUCE", 32, 33),
    ("training", "CALLBACKS", 30, 35),
    ("steps", "FIT", 0, 40),
    ("training", "EVALUATE", 50, 60),
]


def test_components_stand_below_what_they_lie_within(tmp_path):
    found = merged(tmp_path / "t.json", KERAS_STEPS)
    rows = [
        (row["depth"], row["name"], row["parent"], *(round(row[name] * 1e3, 3) for name in ("seconds", "self_s", "beside_s")))
        for row in found["components"]
    ]
    assert rows == [
        (0, "fit", None, 40, 7, 0),
        (1, "framework run", "fit", 20, 2, 0),
        (2, "optimizer", "framework run", 8, 2, 0),
        (3, "wait for gradients", "optimizer", 6, 6, 0),
        (2, "backward", "framework run", 6, 6, 0),
        (2, "forward", "framework run", 4, 4, 0),
        (1, "next batch", "fit", 8, 8, 0),
        (1, "callbacks", "fit", 5, 4, 0),
        (0, "allreduce", None, 11, 11, 10),
        (0, "evaluate", None, 10, 10, 0),
    ]
    # What one thread does at a time is counted once: fit() and what comes after.
    assert sum(row["self_s"] - row["beside_s"] for row in found["components"]) == pytest.approx(0.050)
    text = as_text(found)
    assert "\n      wait for gradients  " in text and "\nallreduce (beside training)  " in text


def test_what_calls_itself_is_counted_once(tmp_path):
    found = merged(tmp_path / "t.json", [("training", "FORWARD", 2, 6), ("training", "FORWARD", 0, 10)])
    (row,) = found["components"]
    assert (row["calls"], round(row["seconds"], 6), round(row["self_s"], 6), row["depth"]) == (2, 0.01, 0.01, 0)


def test_files_that_were_condensed_before_components_were_nested(tmp_path):
    path = tmp_path / "t.json"
    merged(path, [("training", "FORWARD", 0, 10)])
    told = {"spans": {"training/FORWARD": [3, 0.03], "/ALLREDUCE": [2, 0.5], "training/OTHER": [1, 1.0]}}
    path.write_text(path.read_text().replace("[\n", "[\n" + metadata("farandole_condensed", 0, told) + ",\n", 1))
    rows = {row["name"]: (row["calls"], round(row["seconds"], 6)) for row in analyse(path)["components"]}
    assert rows == {"forward": (4, 0.04), "allreduce": (2, 0.5)}


def test_phases_stand_still_while_others_inside_them_run(tmp_path):
    spans = [("phases", "load", 10, 30), ("phases", "preprocess", 0, 40), ("phases", "train", 40, 100)]
    (rank,) = merged(tmp_path / "t.json", spans)["ranks"]
    assert {name: round(s * 1e3, 3) for name, s in rank["phases"].items()} == {"preprocess": 20, "load": 20, "train": 60}


def test_a_script_that_marks_nothing_has_its_start_and_its_training(tmp_path):
    spans = [("phases", "start", 0, 50), ("steps", "STEP", 60, 70, {"step": 0}), ("steps", "STEP", 70, 90, {"step": 1})]
    found = merged(tmp_path / "t.json", spans)
    assert {name: round(s * 1e3, 3) for name, s in found["ranks"][0]["phases"].items()} == {"start": 50, "train": 30}
    assert [(band["name"], round(band["start_s"] * 1e3, 3)) for band in found["bands"]] == [("start", 0), ("train", 60)]


def test_a_region_that_is_open_when_the_start_ends_counts_once(tmp_path):
    (rank,) = merged(tmp_path / "t.json", [("phases", "start", 0, 50), ("phases", "setup", 40, 80)])["ranks"]
    assert {name: round(s * 1e3, 3) for name, s in rank["phases"].items()} == {"start": 40, "setup": 40}


def test_a_trace_that_is_not_whole_says_so(tmp_path, monkeypatch):
    path, origin_ns = tmp_path / "t.json", time.monotonic_ns()
    spans = [("training", f"{number} {'x' * 80}", number, number + 1) for number in range(500)]
    record(path, 0, 3, spans[:2], origin_ns=origin_ns)
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", "0.02")
    record(path, 1, 3, spans, origin_ns=origin_ns)
    part = part_path(path, 0)
    part.write_bytes(part.read_bytes().split(b'"1 ')[0])
    timeline.merge_parts(path)
    found = analyse(path)
    lost = found["dropped_by_rank"]["1"]["dropped"]
    torn = sum(found["cut_bytes_by_rank"].values())
    head = as_text(found).splitlines()[1:5]
    assert 0 < lost < 500 and torn > 10
    assert head[0] == "no part of rank 2"
    assert head[1].startswith(f"recording was cut on rank 1: {lost} events are lost (the limit of 0.02 MB")
    assert head[2] == "the recording of rank 0 was not ended: its last moments are missing"
    assert head[3] == f"torn: {torn} bytes of rank 0 cannot be read"


def test_drifting_clocks_are_put_right(tmp_path):
    path, origin_ns = tmp_path / "t.json", time.monotonic_ns()
    record(path, 0, 2, [("training", "A", 0, 1), ("training", "B", 1000, 1001)], origin_ns=origin_ns)
    # Rank 1's clock is 5 s behind in the begin, and loses 2 ms a second.
    timeline.start(path, rank=1, size=2, host="n1", origin_ns=origin_ns - 5_000 * MS, clock=ClockOffset(
        offset_ns=5_000 * MS, residual_ns=20_000, how="asked"))  # fmt: skip
    timeline.span("training", "A", origin_ns - 5_000 * MS, origin_ns - 4_999 * MS)
    timeline.span("training", "B", origin_ns - 4_002 * MS, origin_ns - 4_001 * MS)
    now_ns = time.monotonic_ns()
    drifted_ns = round((now_ns - origin_ns + 5_000 * MS) * (2 / 998))
    timeline.stop(ClockOffset(offset_ns=5_000 * MS + drifted_ns, residual_ns=30_000, how="asked"))
    timeline.merge_parts(path)
    spans = [e for e in json.loads(path.read_text()) if e["ph"] == "X"]
    starts = {(e["pid"], e["name"]): e["ts"] / 1000 for e in spans}
    assert starts[1, "A"] == pytest.approx(starts[0, "A"], abs=0.01)
    assert starts[1, "B"] == pytest.approx(starts[0, "B"], abs=0.05)
    found = analyse(path)
    assert found["residual_s"] == pytest.approx(30e-6)
    assert found["clock"] == "asked, at the begin and at the end"
    assert "at most 30.0 us" in as_text(found)


def test_a_file_of_another_kind_is_told(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('[\n{"ph":"X","pid":0,"tid":0,"ts":1,"dur":1,"name":"a"}\n]\n')
    with pytest.raises(DataError, match="no timeline that farandole has merged"):
        analyse(other)
    for event in ('{"ph":"X","pid":0,"ts":1,"dur":1,"name":"a"}', '{"ph":"C","name":"power cpu n1"}', '{"ph":"M","args":{}}', '{"ph":"X","pid":[]}'):
        other.write_text(f"[\n{event}\n]\n")
        with pytest.raises(DataError, match=r"line 2: .* is no event of a merged timeline"):
            analyse(other)
    other.write_text("not json")
    with pytest.raises(DataError, match="line 1: 'not json' is no event"):
        analyse(other)
    with pytest.raises(DataError, match="cannot be read"):
        analyse(tmp_path / "absent.json")


def test_power_that_was_not_seen_is_a_gap(tmp_path):
    """Of a step neither all parts nor any may be known; either way there is no sum of them."""
    path, origin_ns = tmp_path / "t.json", time.monotonic_ns()
    timeline.start(path, rank=0, size=1, host="n0", origin_ns=origin_ns)
    for at in (0, 1, 2, 5, 6):
        watts = {"cpu": 40.0} if at == 6 else {"cpu": 40.0, "memory": 5.0}
        timeline.counter("power of parts n0", origin_ns + at * 100 * MS, watts)
    timeline.counter("power of parts n0", origin_ns + 700 * MS, {"cpu": 50.0, "memory": 5.0})
    timeline.stop()
    timeline.merge_parts(path)
    (node,) = analyse(path)["power"]
    assert node["w"] == [45.0, 45.0, 45.0, None, None, 45.0, None, 55.0]
    assert node["t_s"] == pytest.approx([0.1 * at for at in range(8)])
    cpu, memory = node["parts"]
    assert (cpu["part"], cpu["w"]) == ("cpu", [40.0, 40.0, 40.0, None, None, 40.0, 40.0, 50.0])
    assert (memory["part"], memory["w"]) == ("memory", [5.0, 5.0, 5.0, None, None, 5.0, None, 5.0])


def test_power_is_drawn_with_its_provenance(tmp_path, monkeypatch):
    from farandole.observe.power import session
    from powertree import Machine

    Machine(tmp_path / "bare").proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path / "bare"))
    monkeypatch.setenv("FARANDOLE_TIMELINE_POWER", "1")
    monkeypatch.setenv("FARANDOLE_NODE", "n0")
    session.forget_energy()
    path = tmp_path / "t.json"
    timeline.start(path, rank=0, size=1, host="n0")
    time.sleep(0.45)
    timeline.stop()
    session.forget_energy()
    timeline.merge_parts(path)
    (node,) = analyse(path)["power"]
    assert (node["node"], node["provenance"]) == ("n0", "modelled")
    assert len(node["t_s"]) == len(node["w"]) >= 2 and node["t_s"] == sorted(node["t_s"])
    assert [(part["part"], part["provenance"]) for part in node["parts"]] == [("cpu", "modelled"), ("memory", "modelled")]
    assert all(0 <= at <= 60 for at in node["t_s"]) and node["energy_j"] is not None
    counters = [e for e in json.loads(path.read_text()) if e["ph"] == "C"]
    assert counters[0]["name"] == "power of parts n0" and set(counters[0]["args"]) == {"cpu", "memory"}
    assert "J, modelled" in as_text(analyse(path))


def test_power_that_was_sampled_around_the_ranks_is_drawn_afterwards(tmp_path):
    from farandole.observe.power import Phase, energy_of_ranks
    from farandole.observe.power.counters import draw
    from powertree import Machine, steady

    machine = Machine(tmp_path / "machine")
    machine.rapl("0", "package-0", steady(100.0))
    machine.rapl("1", "psys", steady(0.0))
    recording = machine.sampled(at / 10 for at in range(200))
    path, origin_ns = tmp_path / "t.json", 5_000 * MS
    for rank in (0, 1):
        timeline.start(path, rank=rank, size=2, host="n", origin_ns=origin_ns)
        timeline.span("training", "FORWARD", origin_ns, origin_ns + 10 * MS)
        timeline.stop()
    timeline.merge_parts(path)
    before = analyse(path)
    assert draw(path, recording, end_ns=origin_ns + 4_000 * MS)
    found = analyse(path)
    (remark,) = found["power"][0]["remarks"]
    assert remark.startswith("psys never moves") and f"note: {remark}" in as_text(found).splitlines()
    (node,) = found.pop("power")
    assert node["window"] == "whole job", "nobody has told when ranks ran"
    assert before.pop("power") == [] and found == before, "nothing else has changed"
    assert (node["node"], node["provenance"], node["energy_j"]) == (recording.host, "measured-component", pytest.approx(400, rel=0.005))
    assert node["parts"] == [], "one alone is the whole"
    assert node["t_s"] == pytest.approx([0.05 + 0.1 * at for at in range(40)]) and node["w"] == pytest.approx([100.0] * 40, rel=0.01)
    json.loads(path.read_text())
    timeline.merge_parts(path)
    recording.phases = [Phase("command", 0, 19_000 * MS), Phase("ranks", 4_900 * MS, 8_900 * MS)]
    assert draw(path, recording, end_ns=recording.phases[0].end_ns)
    (node,) = analyse(path)["power"]
    assert (node["window"], node["energy_j"]) == ("ranks", energy_of_ranks(recording, recording.phases[0]).whole.total.energy_j)
    torn = path.read_text()[:-20]
    path.write_text(torn)
    assert not draw(path, recording, end_ns=origin_ns) and path.read_text() == torn
