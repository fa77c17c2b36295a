"""Phases of a run: seconds without those of phases inside, and spans."""

import json
import time
from pathlib import Path

import pytest

from farandole.observe import timeline
from farandole.observe.phases import phase, recorded


def test_a_phase_stands_still_while_one_inside_it_runs() -> None:
    with recorded() as times:
        with phase("outer"):
            time.sleep(0.02)
            with phase("inner"):
                time.sleep(0.2)
        with phase("inner"):
            time.sleep(0.1)
    assert 0.3 <= times.seconds["inner"] < 3
    assert 0.02 <= times.seconds["outer"] < times.seconds["inner"]


def test_a_phase_that_fails_is_counted_and_closed() -> None:
    with recorded() as times:
        with pytest.raises(KeyError), phase("first"):
            raise KeyError
        with phase("second"):
            time.sleep(0.01)
    assert set(times.seconds) == {"first", "second"}


def test_a_phase_that_nobody_records_is_in_no_later_recording() -> None:
    with phase("unseen"):
        time.sleep(0.001)
        with recorded() as times, phase("seen"):
            time.sleep(0.001)
    assert set(times.seconds) == {"seen"}


def test_phases_are_spans_of_the_timeline(tmp_path: Path) -> None:
    timeline.start(tmp_path / "trace.json", rank=0, size=1, host="here")
    with recorded(), phase("load"):
        time.sleep(0.001)
    part = timeline.stop()
    assert part is not None
    assert "load" in {event.get("name") for event in json.loads(part.read_text())}
