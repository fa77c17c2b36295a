"""A recording as figures: what each phase took, in total and by part, and power over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from farandole.observe.power.curve import Curve, Seen
from farandole.observe.power.energy import Energy, add, unknown
from farandole.observe.power.gpus import AMD_SMI, NVML
from farandole.observe.power.meters import PARTS, Part, Provenance
from farandole.observe.power.mirrors import mirrors
from farandole.observe.power.recording import Phase, Recording

__all__ = ["MARGIN_NS", "PhaseEnergy", "measure", "measure_phases", "merged", "power_over_time"]

_BRIDGED_SHARE = 0.05
_BRIDGED_INTERVALS = 2
MARGIN_NS = 3_000_000_000
"""How far readings around a stretch of time matter to it: to see what stands still, and to bridge gaps."""
_CEILING_SHARE = 0.1
_MORE_THAN_ALL = 1.05
_DEAD = "never moves, while other meters do: it is left out"

Window = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseEnergy:
    """What one phase took on one node."""

    name: str
    times: int
    duration_s: float
    parts: Mapping[Part, Energy]
    total: Energy
    """The node where it is measured as a whole, otherwise the sum of its parts that are known."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "times": self.times,
            "duration_s": self.duration_s,
            "total": self.total.as_dict(),
            "parts": {part: figure.as_dict() for part, figure in self.parts.items()},
        }


@dataclass(frozen=True, slots=True)
class _View:
    """A recording's curves, which all of its phases are measured by."""

    recording: Recording
    curves: Sequence[Curve]
    aside: Mapping[int, str]
    """Meters that only repeat another one or stand still, and what to say of each."""

    @classmethod
    def around(cls, recording: Recording, windows: Sequence[Window]) -> Self:
        start_ns = min((start for start, _ in windows), default=0)
        end_ns = max((end for _, end in windows), default=0)
        series = recording.between(start_ns, end_ns, MARGIN_NS)
        curves = [Curve(meter, one, recording.interval_s) for meter, one in zip(recording.meters, series)]
        return cls(recording, curves, mirrors(recording.meters, series) | _dead_platforms(recording))

    def meters_of(self, part: Part) -> list[int]:
        """Those of the first sensor that has any; GPUs of two vendors are different GPUs."""
        found = [(at, meter.sensor) for at, meter in enumerate(self.recording.meters) if meter.part == part]
        first = {sensor for _, sensor in found[:1]}
        if part == "gpu" and first <= {NVML, AMD_SMI}:
            first = {NVML, AMD_SMI}
        return [at for at, sensor in found if sensor in first and at not in self.aside]


def measure(
    recording: Recording, name: str, windows: Sequence[Window], idle: PhaseEnergy | None = None, times: int = 1
) -> PhaseEnergy:
    """The energy of all `windows` together, each (start_ns, end_ns); none may overlap another."""
    return _measure(_View.around(recording, windows), name, windows, idle, times)


def _measure(
    view: _View, name: str, windows: Sequence[Window], idle: PhaseEnergy | None, times: int
) -> PhaseEnergy:
    duration_s = sum(end - start for start, end in windows) / 1e9
    parts = {part: _of_part(view, part, windows, duration_s) for part in PARTS}
    if idle is not None:
        parts = {part: figure.with_idle(idle.parts.get(part)) for part, figure in parts.items()}
    return PhaseEnergy(name=name, times=times, duration_s=duration_s, parts=parts, total=_total(parts, duration_s))


def measure_phases(
    recording: Recording, phases: Iterable[Phase], idle: PhaseEnergy | None = None
) -> list[PhaseEnergy]:
    """One for each name, in the order in which they first began.

    A phase within another counts in both. Phases of one name that overlap (two processes) have taken their joules once.
    """
    named: dict[str, list[Phase]] = {}
    for phase in sorted(phases, key=lambda phase: phase.start_ns):
        named.setdefault(phase.name, []).append(phase)
    view = _View.around(recording, merged(phase for found in named.values() for phase in found))
    return [_measure(view, name, merged(found), idle, len(found)) for name, found in named.items()]


def merged(phases: Iterable[Phase]) -> list[Window]:
    """The time in which any phase was under way."""
    windows: list[Window] = []
    for phase in sorted(phases, key=lambda phase: phase.start_ns):
        if windows and phase.start_ns <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(windows[-1][1], phase.end_ns))
        else:
            windows.append((phase.start_ns, phase.end_ns))
    return windows


def power_over_time(
    recording: Recording, part: Part, start_ns: int, end_ns: int, step_ns: int
) -> Iterator[tuple[int, float | None]]:
    """The mean watts of each step and when it began; None where not all of it was seen. For drawings, not for sums."""
    view = _View.around(recording, [(start_ns, end_ns)])
    curves = [view.curves[at] for at in view.meters_of(part)]
    for at_ns in range(start_ns, end_ns - step_ns + 1, step_ns):
        seen = [curve.over(at_ns, at_ns + step_ns) for curve in curves]
        whole = bool(seen) and not any(one.bridged_ns for one in seen)
        yield at_ns, sum(one.joules for one in seen) / step_ns * 1e9 if whole else None


def _of_part(view: _View, part: Part, windows: Sequence[Window], duration_s: float) -> Energy:
    used = view.meters_of(part)
    aside = tuple(dict.fromkeys(remark for at, remark in view.aside.items() if view.recording.meters[at].part == part))
    if not used:
        return unknown("; ".join(aside) or _why_unmeasured(view.recording), duration_s=duration_s, remarks=aside)
    figure = add([_of_meter(view, at, windows, duration_s) for at in used], duration_s=duration_s)
    return replace(figure, source=_source(view.recording, used), remarks=(*figure.remarks, *aside))


def _dead_platforms(recording: Recording) -> dict[int, str]:
    """Meters of the node that never move, although the machine is seen to take energy: some boards connect none."""
    pairs = enumerate(zip(recording.meters, recording.series))
    moving = {at: series.moves for at, (meter, series) in pairs if meter.measured}
    platforms = [at for at, meter in enumerate(recording.meters) if (meter.part, meter.kind) == ("node", "energy")]
    dead = [at for at in platforms if moving.get(at) is False]
    return {at: f"{recording.meters[at].name} {_DEAD}" for at in dead} if True in moving.values() else {}


def _source(recording: Recording, used: Sequence[int]) -> str:
    names: dict[str, list[str]] = {}
    for at in used:
        meter = recording.meters[at]
        names.setdefault(meter.sensor, []).append(meter.note or meter.name)
    return "; ".join(f"{sensor} {', '.join(shown)}" for sensor, shown in names.items())


def _of_meter(view: _View, at: int, windows: Sequence[Window], duration_s: float) -> Energy:
    recording, meter, seen = view.recording, view.recording.meters[at], Seen()
    for start_ns, end_ns in windows:
        seen += view.curves[at].over(start_ns, end_ns)
    remarks = list(_remarks(recording, at, seen))
    reason = ""
    allowed_s = max(_BRIDGED_SHARE * duration_s, _BRIDGED_INTERVALS * recording.interval_s)
    if not seen.ns or seen.bridged_ns / 1e9 > allowed_s:
        reason = f"{meter.name}: {seen.ns / 1e9:.3g} of {duration_s:.3g} s were seen ({'; '.join(seen.reasons)})"
    elif seen.bridged_ns:
        remarks.append(f"{meter.name}: {seen.bridged_ns / 1e9:.2g} s estimated ({'; '.join(seen.reasons)})")
    return Energy(
        provenance=meter.provenance,
        source=meter.name,
        duration_s=duration_s,
        energy_j=None if reason else seen.joules + seen.bridged_joules,
        reason=reason,
        seen_j=seen.joules,
        bridged_s=seen.bridged_ns / 1e9,
        remarks=tuple(remarks),
    )


def _remarks(recording: Recording, at: int, seen: Seen) -> Iterator[str]:
    meter, failures = recording.meters[at], recording.series[at].failures
    if seen.ns and seen.ceiling_ns > _CEILING_SHARE * seen.ns:
        yield (
            f"{meter.name}: at its ceiling of {meter.ceiling_w:g} W {seen.ceiling_ns / seen.ns:.0%} of the time: its power "
            "is limited, or more than the meter can show"
        )
    if failures:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in failures.items())
        yield f"{meter.name}: failed readings: {reasons}"


def _why_unmeasured(recording: Recording) -> str:
    refused = [f"{refusal.sensor}: {refusal.reason}" for refusal in recording.refusals]
    return f"no meter of it ({'; '.join(refused)})" if refused else "no meter of it"


def _total(parts: Mapping[Part, Energy], duration_s: float) -> Energy:
    if parts["node"].provenance is Provenance.NODE:
        return _checked(parts["node"], parts)
    known = {part: figure for part, figure in parts.items() if figure.provenance is not Provenance.NONE}
    total = add(list(known.values()), duration_s=duration_s)
    remarks = tuple(dict.fromkeys((*total.remarks, *parts["node"].remarks)))
    return replace(total, remarks=remarks, source=" + ".join(f"{part} ({figure.source})" for part, figure in known.items()))


def _checked(node: Energy, parts: Mapping[Part, Energy]) -> Energy:
    """With a remark where the parts have taken more than the whole: a board's meter may leave out GPUs."""
    parts_j = sum(figure.energy_j or 0.0 for part, figure in parts.items() if part != "node")
    if node.energy_j is None or parts_j <= _MORE_THAN_ALL * node.energy_j:
        return node
    remark = f"the parts took {parts_j:,.0f} J, more than the node: its meter does not cover all of them"
    return replace(node, remarks=(*node.remarks, remark))
