"""Recorded traces: what the meters showed, in a file that gives the same figures again. docs/power.md has the format."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from farandole.errors import DataError, SettingsError
from farandole.observe.power.fields import (
    COST,
    HEADER,
    IDLE,
    METER,
    PHASE,
    READING,
    REFUSAL,
    WrongValue,
    checked,
    in_order,
    number_of,
)
from farandole.observe.power.meters import Meter, Provenance, Reading, Refusal
from farandole.observe.power.recording import MISSING, MeterSeries, Phase, Recording, SamplerCost

__all__ = ["read_trace", "write_trace"]

_log = logging.getLogger(__name__)
_FORMAT = "farandole-power"
_VERSION = 1


def write_trace(path: Path, recording: Recording) -> None:
    """Whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w") as file:
            file.writelines(line + "\n" for line in _lines(recording))
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise SettingsError(f"power trace {path}: cannot be written ({error.strerror})") from error


def read_trace(path: Path) -> Recording:
    """A recording as it was; a last line that was cut off is left out."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"power trace {path}: cannot be read ({error})") from error
    recording = _opened(path, lines[0] if lines else "")
    for number, line in enumerate(lines[1:], 2):
        try:
            _take(recording, json.loads(line))
        except WrongValue as error:
            raise DataError(f"power trace {path}, line {number}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) and isinstance(error, json.JSONDecodeError):
                _log.warning("power trace %s: its last line was cut off and is left out", path)
                break
            raise DataError(f"power trace {path}, line {number}: {line[:80]!r} is no reading, phase or cost") from error
    return recording


def _lines(recording: Recording) -> Iterator[str]:
    meters = [asdict(meter) for meter in recording.meters]
    yield json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "host": recording.host,
            "machine": recording.machine,
            "interval_s": recording.interval_s,
            "meters": meters,
            "refusals": [asdict(refusal) for refusal in recording.refusals],
        }
    )
    yield from map(json.dumps, sorted(_rows(recording), key=itemgetter(1)))
    for phase in recording.phases:
        yield json.dumps({"phase": phase.name, "start_ns": phase.start_ns, "end_ns": phase.end_ns})
    if recording.idle is not None:
        yield json.dumps({"idle": recording.idle})
    yield json.dumps({"sampler": asdict(recording.cost)})


def _rows(recording: Recording) -> Iterator[list[int | None]]:
    for at, series in enumerate(recording.series):
        for monotonic_ns, realtime_ns, raw in zip(series.monotonic_ns, series.realtime_ns, series.raw):
            yield [at, monotonic_ns, realtime_ns, None if raw == MISSING else raw]


def _opened(path: Path, line: str) -> Recording:
    try:
        told = json.loads(line)
        if told["format"] != _FORMAT or told["version"] != _VERSION:
            raise ValueError(told["version"])
        meters = [_meter(described) for described in told["meters"]]
        refusals = [Refusal(**checked(refusal, REFUSAL)) for refusal in told.get("refusals", [])]
        checked(told, HEADER)
        return Recording(
            meters=meters, series=[MeterSeries() for _ in meters], interval_s=float(told["interval_s"]),
            host=told["host"], machine=told["machine"], replayed_from=str(path), refusals=refusals,
        )  # fmt: skip
    except WrongValue as error:
        raise DataError(f"power trace {path}, line 1: {error}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"power trace {path}: its first line is not that of a trace, version {_VERSION} ({type(error).__name__}: {error}). "
            "Record one with: farandole power --record FILE -- COMMAND"
        ) from error


def _meter(described: dict[str, Any]) -> Meter:
    return Meter(**checked(described, METER) | {"provenance": Provenance(described["provenance"])})


def _take(recording: Recording, told: Any) -> None:
    if isinstance(told, list):
        _take_reading(recording, *told)
    elif "phase" in told:
        start_ns, end_ns = checked(told, PHASE)["start_ns"], told["end_ns"]
        in_order("end_ns", start_ns, end_ns)
        recording.phases.append(Phase(told["phase"], start_ns, end_ns))
    elif "idle" in told:
        start_ns, end_ns = told["idle"]
        checked({"the begin of idle": start_ns, "the end of idle": end_ns}, IDLE)
        in_order("the end of idle", start_ns, end_ns)
        recording.idle = start_ns, end_ns
    else:
        recording.cost = SamplerCost(**checked(told["sampler"], COST))


def _take_reading(recording: Recording, at: Any, monotonic_ns: Any, realtime_ns: Any, raw: Any) -> None:
    told = {"the meter's number": at, "monotonic_ns": monotonic_ns, "the time since 1970": realtime_ns, "the count": raw}
    checked(told, {"the meter's number": number_of(len(recording.meters)), **READING})
    recording.series[at].add(Reading(monotonic_ns, realtime_ns, raw, "failed when it was recorded"))
