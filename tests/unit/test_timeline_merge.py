"""Merging the ranks' parts: one clock, torn parts, missing ranks, repetition, bounded memory."""

import json
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from farandole.errors import FarandoleError
from farandole.observe import timeline
from farandole.observe.part import CLOSING_BYTES, ClockOffset

HOUR_NS = 3_600 * 10**9


def make_part(path: Path, *, rank: int, size: int, names: list[str], clock_offset_ns: int = 0) -> Path:
    """A rank that records spans of 1 us, each 10 us after the other; its start is the first one's."""
    timeline.start(path, rank=rank, size=size, host=f"n{rank}", clock=ClockOffset(offset_ns=clock_offset_ns))
    now = time.monotonic_ns()
    for number, name in enumerate(names):
        timeline.span("training", name, now + number * 10_000, now + number * 10_000 + 1_000)
    part = timeline.stop()
    assert part is not None
    return part


def load(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def span_names(events: list[dict], rank: int = 0) -> list[str]:
    return [e["name"] for e in events if e["ph"] == "X" and e["pid"] == rank]


def gaps_of(merged: Path) -> dict:
    return load(merged)[-1]["args"]


def header_of(part: Path) -> dict:
    return load(part)[0]["args"]


def test_ranks_meet_on_one_clock(tmp_path):
    path = tmp_path / "trace.json"
    # Rank 1's host booted an hour later, rank 2's an hour earlier: their clocks lie, the offsets say how much.
    offsets = [0, HOUR_NS, -HOUR_NS]
    parts = [make_part(path, rank=r, size=3, names=["A", "B"], clock_offset_ns=offsets[r]) for r in range(3)]
    starts_ns = [header_of(part)["start_monotonic_ns"] + offset for part, offset in zip(parts, offsets)]
    own_us = [[e["ts"] for e in load(part) if e["ph"] == "X"] for part in parts]
    header_of_first = header_of(parts[2])
    epoch_us = header_of_first["start_time_since_epoch_in_micros"]

    assert timeline.merge_parts(path) == path
    events = load(path)
    assert events[0]["ph"] == "M"
    assert events[0]["args"] == {
        "start_time_since_epoch_in_micros": epoch_us,
        "start_monotonic_ns": header_of_first["start_monotonic_ns"],
        "size": 3,
        "ranks": [0, 1, 2],
        "clock_residual_us": 0.0,
        "clock": "one machine",
    }
    for rank in range(3):
        got_ns = [round(e["ts"] * 1000) for e in events if e["ph"] == "X" and e["pid"] == rank]
        shift_ns = starts_ns[rank] - min(starts_ns)
        assert got_ns == [round(us * 1000) + shift_ns for us in own_us[rank]]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "rank 0 (n0)",
        "rank 1 (n1)",
        "rank 2 (n2)",
    }
    gaps = gaps_of(path)
    assert not any(gaps.values()), gaps
    assert list(tmp_path.iterdir()) == [path]


def test_merging_again_changes_nothing(tmp_path):
    path = tmp_path / "trace.json"
    assert timeline.merge_parts(path) is None
    make_part(path, rank=0, size=1, names=["A"])
    assert timeline.merge_parts(path) == path
    before = path.read_bytes()
    assert timeline.merge_parts(path) is None
    assert path.read_bytes() == before


def test_missing_ranks_and_parts_of_another_run_are_told(tmp_path):
    path = tmp_path / "trace.json"
    make_part(path, rank=7, size=8, names=["OLD"])
    make_part(path, rank=0, size=4, names=["A"])
    make_part(path, rank=2, size=4, names=["B"])
    (tmp_path / "trace.json.parts" / "rank.00003.json").write_bytes(b"")
    merged = timeline.merge_parts(path)
    gaps = gaps_of(merged)
    assert gaps["missing_ranks"] == [1, 3]
    assert set(gaps["ignored_parts"]) == {"rank.00007.json", "rank.00003.json"}
    assert span_names(load(merged), 7) == [] and span_names(load(merged), 2) == ["B"]


def test_parts_of_a_crashed_run_can_be_discarded(tmp_path):
    path = tmp_path / "trace.json"
    make_part(path, rank=1, size=2, names=["OLD"])
    timeline.discard_parts(path)
    timeline.discard_parts(path)
    assert timeline.merge_parts(path) is None and not list(tmp_path.iterdir())


def test_every_whole_event_survives_a_write_torn_anywhere(tmp_path):
    path = tmp_path / "trace.json"
    part = make_part(path, rank=0, size=1, names=["FIRST", "SECOND", "THIRD"])
    image = part.read_bytes()
    third = image.index(b"\n", image.index(b'"SECOND"')) + 1
    old = image[: third - 2] + image[-CLOSING_BYTES:]  # as it was before THIRD was added
    json.loads(old)
    for length in range(third - 40, third + 120):
        torn = image[:length]
        for content in (torn, torn + old[length:], torn + b"\0" * 100):
            part.parent.mkdir(exist_ok=True)
            part.write_bytes(content)
            merged = timeline.merge_parts(path)
            names = span_names(load(merged))
            whole = [n for n in ("FIRST", "SECOND", "THIRD") if b'"name":"%b"}' % n.encode() in content]
            assert names == whole
            assert gaps_of(merged)["missing_ranks"] == []


def test_a_torn_end_is_told(tmp_path):
    path = tmp_path / "trace.json"
    part = make_part(path, rank=0, size=1, names=["A", "B"])
    image = part.read_bytes()
    part.write_bytes(image[: image.index(b'"B"')])
    gaps = gaps_of(timeline.merge_parts(path))
    assert gaps["unfinished_ranks"] == [0] and gaps["cut_bytes_by_rank"]["0"] > 10


def test_a_merge_that_fails_keeps_the_parts_and_says_what_to_type(tmp_path):
    path = tmp_path / "trace.json"
    part = make_part(path, rank=0, size=1, names=["A"])
    path.mkdir()
    with pytest.raises(FarandoleError, match=r"python -m farandole\.observe\.merge .*trace\.json"):
        timeline.merge_parts(path)
    assert list(part.parent.iterdir()) == [part]
    path.rmdir()
    command = [sys.executable, "-W", "error", "-m", "farandole.observe.merge", str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == str(path) and span_names(load(path)) == ["A"]


ENDLESS = """
import itertools, sys, time
from farandole.observe import timeline
from farandole.observe.part import ClockOffset
timeline.start(sys.argv[1], rank=int(sys.argv[2]), size=2, host="n")
for number in itertools.count():
    now = time.monotonic_ns()
    timeline.span("training", f"step {number}", now, now + 10)
    if number % 50 == 0:
        time.sleep(0.001)
"""


def test_ranks_killed_while_writing_leave_a_readable_timeline(tmp_path):
    path = tmp_path / "trace.json"
    ranks = [subprocess.Popen([sys.executable, "-c", ENDLESS, str(path), str(rank)]) for rank in range(2)]
    try:
        deadline = time.monotonic() + 60
        while not all(grown(path, rank) for rank in range(2)) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
    merged = timeline.merge_parts(path)
    events = load(merged)
    for rank in range(2):
        names = span_names(events, rank)
        assert len(names) > 1_000 and names == [f"step {number}" for number in range(len(names))]
    assert gaps_of(merged)["unfinished_ranks"] == [0, 1]


def grown(path: Path, rank: int) -> bool:
    part = path.with_name(path.name + ".parts") / f"rank.{rank:05d}.json"
    return part.exists() and part.stat().st_size > 200_000


@pytest.mark.more
def test_merging_200_thousand_events_takes_little_memory(tmp_path):
    path = tmp_path / "trace.json"
    for rank in range(2):
        make_part(path, rank=rank, size=2, names=["ALLREDUCE", "MPI_ALLREDUCE"] * 50_000)
    tracemalloc.start()
    try:
        merged = timeline.merge_parts(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert merged.stat().st_size > 15e6
    assert peak_bytes < 8e6
    assert sum(e["ph"] == "X" for e in load(merged)) == 200_000
