"""Merged timelines stay small enough to open at any number of ranks, and keep their sums."""

import json
import re
import time
from pathlib import Path

import pytest

from farandole.observe.analysis import analyse, as_text
from farandole.observe.chrome import metadata
from farandole.observe.merge import merge_parts
from farandole.observe.part import CLOSING_BYTES, NOTE, part_path

RANKS = 1_536  # which nobody could draw
STRAGGLER = 700
LATE_US = 800

# One step of 10 ms: track, name, start and duration in us. ALLREDUCE: 2.5 ms, of which training waits for the last one.
STEP = [
    ("training", "DATA", 0, 1000),
    ("training", "FORWARD", 1000, 3000),
    ("communication 1", "ALLREDUCE", 5000, 1500),
    ("training", "BACKWARD", 4000, 4000),
    ("communication 1", "ALLREDUCE", 8000, 1000),
    ("training", "WAIT_FOR_GRADIENTS", 8000, 1000),
    ("training", "OPTIMIZER", 9000, 900),
    ("steps", "STEP", 0, 10000),
]
TRACKS = {"training": 1, "communication 1": 2, "steps": 3, "phases": 4}


def event(pid: int, track: str, name: str, start_us: float, duration_us: float, **args: object) -> str:
    told = f',"args":{json.dumps(args)}' if args else ""
    return (
        f'{{"ts":{start_us:.3f},"dur":{duration_us:.3f},"ph":"X","pid":{pid},"tid":{TRACKS[track]},'
        f'"name":"{name}"{told.replace(": ", ":").replace(", ", ",")}}}'
    )


def rank_text(pid: int, steps: int, *, late_us: int = 0) -> str:
    """A rank's part; one that is late is ready for its gradients that much later, and the others wait for it."""
    lines = [metadata("process_name", pid, {"name": f"rank {pid} (n{pid // 6})"})]
    lines += [metadata("thread_name", pid, {"name": track}, tid=tid) for track, tid in TRACKS.items()]
    for number in range(steps):
        for track, name, start, duration in STEP:
            at, lasts = number * 10_000 + start, duration
            if name == "BACKWARD":
                lasts += late_us
            if name == "WAIT_FOR_GRADIENTS":
                at, lasts = at + late_us, lasts - late_us
            lines.append(event(pid, track, name, at, lasts, step=number))
    lines.append(event(pid, "steps", "FIT", 0, steps * 10_000))
    lines.append(event(pid, "phases", "train", 0, steps * 10_000))
    return ",\n".join(lines)


def write_parts(path: Path, ranks: int, steps: int) -> int:
    """As ranks write them, only faster."""
    part_path(path, 0).parent.mkdir()
    usual, late = rank_text(0, steps), rank_text(0, steps, late_us=LATE_US)
    written = 0
    for rank in range(ranks):
        header = {
            "start_time_since_epoch_in_micros": 0, "rank": rank, "size": ranks, "host": f"n{rank // 6}",
            "start_monotonic_ns": 0, "clock_offset_ns": 0, "clock_residual_ns": 0, "clock": "one machine",
        }  # fmt: skip
        note = metadata(NOTE, rank, {"closed": True})
        body = (late if rank == STRAGGLER else usual).replace('"pid":0,', f'"pid":{rank},')
        body = body.replace("rank 0 (n0)", f"rank {rank} (n{rank // 6})")
        closing = f",{'':{CLOSING_BYTES - len(note) - 4}}\n{note}\n]"
        text = f"[\n{metadata('farandole_part', rank, header)},\n{body}{closing}"
        written += part_path(path, rank).write_text(text)
    return written - ranks * CLOSING_BYTES


def check(path: Path, steps: int, limit_bytes: int) -> None:
    """The file opens, is small, says what it lacks, and its sums are those of what was recorded."""
    assert path.stat().st_size < limit_bytes
    events = json.loads(path.read_text())
    assert {e["pid"] for e in events if e["ph"] == "X"} == set(range(RANKS))
    told = events[-1]["args"]["condensed"]
    assert told["left_out"] > 0 and f"{told['left_out']:,} spans" in told["what"]
    found = analyse(path)
    assert len(found["ranks"]) == RANKS and found["residual_s"] == 0
    for rank in [*found["ranks"][:3], found["ranks"][STRAGGLER]]:
        late_s = LATE_US * 1e-6 if rank["rank"] == STRAGGLER else 0.0
        truth = {
            "comm_s": 2.5e-3, "exposed_s": 1e-3 - late_s, "hidden_s": 1.5e-3 + late_s, "data_stall_s": 1e-3,
            "forward_s": 3e-3, "backward_s": 4e-3 + late_s, "optimizer_s": 0.9e-3, "wait_s": LATE_US * 1e-6 - late_s,
            "gradient_wait_s": LATE_US * 1e-6 - late_s, "training_s": 0.01,
        }  # fmt: skip
        figures = {name: rank[name] for name in truth}
        assert figures == pytest.approx({name: s * steps for name, s in truth.items()}, rel=1e-4, abs=1e-6)
        assert rank["phases"] == {"train": pytest.approx(steps * 0.01)}
        assert rank["steps"] and rank["steps"] == pytest.approx([0.01] * len(rank["steps"]))
        assert sum(rank["step_counts"]) == steps
    calls = {row["name"]: (row["calls"], row["seconds"]) for row in found["components"]}
    assert calls["allreduce"] == (pytest.approx(2 * steps), pytest.approx(2.5e-3 * steps, rel=1e-3))
    assert calls["optimizer"] == (pytest.approx(steps), pytest.approx(0.9e-3 * steps, rel=1e-3))
    rows = {row["name"]: row for row in found["components"]}
    assert [rows[name]["depth"] for name in ("fit", "forward", "backward", "wait for gradients", "allreduce")] == [0, 1, 1, 1, 0]
    assert rows["fit"]["self_s"] == pytest.approx(1e-4 * steps, rel=1e-2), "what is left out is still within fit()"
    text = as_text(found)
    assert "1536 ranks" in text and "condensed: the parts were larger" in text
    assert re.search(rf"^ *{STRAGGLER} +{steps} +0\.0100 ", text, re.MULTILINE), "steps of the rank that others waited for"


def test_1536_ranks_are_one_file_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_parts(path, RANKS, 12) > 15e6
    merge_parts(path, 10_000_000)
    check(path, 12, 10_000_000)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_1536_ranks_with_many_steps(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert write_parts(path, RANKS, 150) > 180e6
    began = time.monotonic()
    merge_parts(path)
    print(f"merged in {time.monotonic() - began:.1f} s, {path.stat().st_size / 1e6:.1f} MB")
    check(path, 150, 50_000_000)
