"""The recording side of the timeline: the format, threads, forks, limits and full disks."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from farandole.errors import SettingsError
from farandole.observe import timeline


@pytest.fixture(autouse=True)
def _stopped(monkeypatch):
    for name in ("FARANDOLE_TIMELINE", "HOROVOD_TIMELINE", "FARANDOLE_TIMELINE_MAX_MB"):
        monkeypatch.delenv(name, raising=False)
    yield
    timeline.stop()


def record(path, *, rank=0, size=1, **options):
    timeline.start(path, rank=rank, size=size, host=f"node{rank}", **options)


def part_of(path: Path, rank: int = 0) -> Path:
    return path.with_name(path.name + ".parts") / f"rank.{rank:05d}.json"


def strict(text: str):
    """JSON as viewers read it: NaN and Infinity are not numbers there."""

    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def events_of(path: Path, phase: str) -> list[dict]:
    return [event for event in strict(path.read_text()) if event["ph"] == phase]


def check_chrome_rules(events: list[dict]) -> None:
    """Required keys and types, named processes and tracks, spans that nest within each track."""
    spans = defaultdict(list)
    named_processes = {e["pid"] for e in events if e["name"] == "process_name"}
    named_tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert event["ph"] in ("M", "X", "i", "C")
        if event["ph"] == "M":
            assert isinstance(event["args"], dict) and "ts" not in event
            continue
        assert isinstance(event["ts"], float) and event["ts"] >= 0
        assert event["pid"] in named_processes
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
            continue
        assert (event["pid"], event["tid"]) in named_tracks
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        else:
            assert isinstance(event["dur"], float) and event["dur"] >= 0
            start = round(event["ts"] * 1000)
            spans[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for track in spans.values():
        check_nesting(track)


def check_nesting(spans: list[tuple[int, int]]) -> None:
    open_ends: list[int] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"span {start}..{end} overlaps the end of its parent"
        open_ends.append(end)


def test_off_by_default_and_calls_are_harmless():
    assert not timeline.active()
    timeline.span("training", "FORWARD", 0, 1)
    timeline.instant("training", "STEP", 0)
    timeline.counter("power", 0, {"W": 1.0})
    assert timeline.stop() is None


def test_a_recorded_run_follows_the_chrome_rules(tmp_path):
    path = tmp_path / "made" / "for" / "it" / "trace.json"
    record(path, rank=3, size=4)
    assert timeline.active()
    t = time.monotonic_ns()
    for step in range(50):
        at = t + step * 1_000_001
        timeline.span("communication", "MPI_ALLREDUCE", at + 100, at + 300, {"bytes": 4096})
        timeline.span("communication", "ALLREDUCE", at + 50, at + 400, {"tensor": 'a "quoted"\nnäme'})
        timeline.span("training", "STEP", at, at + 1_000_001)
    timeline.instant("engine", "NEGOTIATE_ALLREDUCE", t, {"rank": 1})
    timeline.counter("power", t, {"package_w": 63.5})
    part = timeline.stop()

    assert part == part_of(path, 3) and not timeline.active()
    events = strict(part.read_text())
    check_chrome_rules(events)
    assert events[0]["ph"] == "M"
    assert abs(events[0]["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 60
    named = {e["name"]: e["args"] for e in events if e["ph"] == "M"}
    assert named["process_name"] == {"name": "rank 3 (node3)"}
    assert named["process_sort_index"] == {"sort_index": 3}
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == [
        "communication",
        "training",
        "engine",
    ]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) == 150
    assert spans[1]["args"] == {"tensor": 'a "quoted"\nnäme'}
    steps = [e for e in spans if e["name"] == "STEP"]
    assert round((steps[1]["ts"] - steps[0]["ts"]) * 1000) == 1_000_001  # to the nanosecond
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"package_w": 63.5}]


def test_arguments_of_any_kind_stay_json(tmp_path):
    class Hostile:
        def __str__(self):
            raise RuntimeError("no text for you")

    record(tmp_path / "trace.json")
    kinds = {"loss": float("nan"), "lr": 0.1, "shape": (2, 3), "path": Path("x"), "ok": True, "none": None}
    now = time.monotonic_ns()
    timeline.span("training", "MIXED", now, now, kinds)
    timeline.span("training", "HOSTILE", now, now, {"value": Hostile()})
    timeline.span("training", "AFTER", now, now)
    part = timeline.stop()
    mixed, after = events_of(part, "X")
    assert mixed["args"] == {"loss": "nan", "lr": 0.1, "shape": [2, 3], "path": "x", "ok": True, "none": None}
    assert after["name"] == "AFTER"
    assert strict(part.read_text())[-1]["args"]["dropped_by_name"] == {"HOSTILE": 1}


def test_arguments_changed_after_the_call_are_recorded_as_they_were(tmp_path):
    record(tmp_path / "trace.json")
    args = {"bytes": 1}
    timeline.span("training", "COPY", 0, 1, args)
    args["bytes"] = 2
    assert events_of(timeline.stop(), "X")[0]["args"] == {"bytes": 1}


def test_spans_begun_before_the_recording_are_clipped(tmp_path):
    before = time.monotonic_ns() - 60 * 10**9
    record(tmp_path / "trace.json")
    timeline.span("training", "LOADING", before, time.monotonic_ns())
    (span,) = events_of(timeline.stop(), "X")
    assert span["ts"] == 0 and 0 <= span["dur"] < 30e6


def test_cycles_are_marked_on_request_only(tmp_path):
    for asked in (False, True):
        record(tmp_path / "trace.json", mark_cycles=asked)
        timeline.cycle_start(time.monotonic_ns())
        assert [e["name"] for e in events_of(timeline.stop(), "i")] == ["CYCLE_START"] * asked


def test_threads_record_together_and_nothing_is_lost(tmp_path):
    def work(number):
        for at in range(5_000):
            timeline.span(
                f"communication {number}", f"bucket {at % 7}", origin + at * 10, origin + at * 10 + 9
            )

    record(tmp_path / "trace.json")
    origin = time.monotonic_ns()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = strict(timeline.stop().read_text())
    check_chrome_rules(events)
    assert sum(e["ph"] == "X" for e in events) == 20_000


def test_the_part_is_valid_json_while_threads_record(tmp_path):
    def work():
        while not done.is_set():
            now = time.monotonic_ns()
            for number in range(100):
                timeline.span("training", "STEP", now + number, now + number + 1, {"number": number})
            time.sleep(0.02)

    path = tmp_path / "trace.json"
    record(path)
    done = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        counts, collisions, deadline = [], 0, time.monotonic() + 60
        while len(counts) < 100 and time.monotonic() < deadline:
            try:
                counts.append(len(strict(part_of(path).read_text())))
            except ValueError:  # read in the midst of a write, which may take a while: a later reading must do
                collisions += 1
            time.sleep(0.01)
    finally:
        done.set()
        thread.join()
    assert len(counts) == 100 and collisions <= 50
    assert counts == sorted(counts) and len(set(counts)) > 3, "the file grows while it is read"


def test_a_full_part_counts_what_it_drops_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", "0.05")
    path = tmp_path / "trace.json"
    record(path, rank=1, size=2)
    now = time.monotonic_ns()
    with caplog.at_level(logging.WARNING):
        for number in range(3_000):
            timeline.span("training", "STEP", now + number * 10, now + number * 10 + 5)
            timeline.span("communication", f"{number} größer" * 30, now + number * 10, now + number * 10 + 5)
        part = timeline.stop()

    assert part.stat().st_size < 50_000 + 5_000
    note = strict(part.read_text())[-1]["args"]
    kept = len(events_of(part, "X"))
    assert kept > 100 and note["dropped"] == 6_000 - kept == sum(note["dropped_by_name"].values())
    assert note["dropped_by_name"]["STEP"] > 2_000 and note["dropped_by_name"]["(other names)"] > 2_000
    (warning,) = caplog.messages
    assert warning.startswith("[rank 1/2]") and "FARANDOLE_TIMELINE_MAX_MB" in warning

    merged = timeline.merge_parts(path)
    check_chrome_rules(strict(merged.read_text()))
    (mark,) = events_of(merged, "i")
    assert mark["name"].startswith("TIMELINE CUT: the limit of 0.05 MB")
    last_kept = max(e["ts"] for e in events_of(merged, "X"))
    assert last_kept <= mark["ts"] <= last_kept + 1
    gaps = strict(merged.read_text())[-1]["args"]
    assert gaps["dropped_by_rank"]["1"]["dropped"] == 6_000 - kept and gaps["missing_ranks"] == [0]


@pytest.mark.parametrize("value", ["many", "0", "-1", "nan", "inf"])
def test_a_senseless_size_limit_is_an_error(tmp_path, monkeypatch, value):
    monkeypatch.setenv("FARANDOLE_TIMELINE_MAX_MB", value)
    with pytest.raises(SettingsError, match=f"FARANDOLE_TIMELINE_MAX_MB='{value}'"):
        record(tmp_path / "trace.json")
    assert not timeline.active()


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(SettingsError, match=r"is a folder.*trace\.json"):
        record(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="Not a directory"):
        record(tmp_path / "file" / "trace.json")
    assert not timeline.active()


def test_a_second_start_is_an_error_and_a_restart_is_not(tmp_path):
    record(tmp_path / "one.json")
    with pytest.raises(SettingsError, match=r"one\.json"):
        record(tmp_path / "two.json")
    timeline.stop()
    record(tmp_path / "two.json")
    assert timeline.stop() == part_of(tmp_path / "two.json")


def test_environment(monkeypatch):
    assert timeline.path_from_environment() is None
    monkeypatch.setenv("HOROVOD_TIMELINE", "old.json")
    assert timeline.path_from_environment() == Path("old.json")
    monkeypatch.setenv("FARANDOLE_TIMELINE", "new.json")
    assert timeline.path_from_environment() == Path("new.json")
    monkeypatch.setenv("FARANDOLE_TIMELINE", "DYNAMIC")
    assert timeline.path_from_environment() is None


FULL_DISK = """
import resource, sys, time
from farandole.observe import timeline
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
timeline.start(sys.argv[1], rank=0, size=1, host="small")
for number in range(3_000):
    now = time.monotonic_ns()
    timeline.span("training", f"STEP {number % 3}", now, now + 1)
deadline = time.monotonic() + 20
while timeline.active() and time.monotonic() < deadline:
    time.sleep(0.01)
print("recording" if timeline.active() else "off", timeline.stop())
"""

FORK = """
import os, sys, time
from farandole.observe import timeline
timeline.start(sys.argv[1], rank=0, size=1, host="n")
now = time.monotonic_ns()
timeline.span("training", "BEFORE", now, now + 1)
if (child := os.fork()) == 0:
    assert not timeline.active()
    timeline.span("training", "CHILD", now, now + 1)
    assert timeline.stop() is None
    timeline.start(sys.argv[1] + ".child", rank=0, size=1, host="n")
    timeline.span("training", "CHILD", now, now + 1)
    timeline.stop()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
timeline.span("training", "AFTER", now, now + 1)
timeline.stop()
"""


def run_script(script: str, *args: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", "-c", script, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_stops_the_recording_and_not_the_training(tmp_path):
    path = tmp_path / "trace.json"
    run = run_script(FULL_DISK, path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["off", str(part_of(path))]
    assert run.stderr.count("recording stops: File too large") == 1
    kept = len(events_of(part_of(path), "X"))
    note = strict(part_of(path).read_text())[-1]["args"]
    assert 500 < kept < 3_000 and note["dropped"] == 3_000 - kept
    assert note["dropped_because"] == "File too large" and part_of(path).stat().st_size <= 100_000
    merged = timeline.merge_parts(path)
    assert [e["name"] for e in events_of(merged, "i")] == ["TIMELINE CUT: File too large"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_parents_file_alone(tmp_path):
    path = tmp_path / "trace.json"
    run = run_script(FORK, path)
    assert run.returncode == 0, run.stderr
    assert [e["name"] for e in events_of(part_of(path), "X")] == ["BEFORE", "AFTER"]
    assert [e["name"] for e in events_of(part_of(Path(f"{path}.child")), "X")] == ["CHILD"]
