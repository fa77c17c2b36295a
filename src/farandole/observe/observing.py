"""A command run under observation: what its processes need in their environment, and one timeline of what they left."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import SettingsError
from farandole.observe import timeline
from farandole.observe.observer import OBSERVE_VARIABLE, TIMELINE
from farandole.observe.power.child import run_command

__all__ = ["Observed", "observe", "observing_environment"]

_FIRST_ON_THE_PATH = Path(__file__).with_name("inject")


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """How an observed command has ended."""

    exit_code: int
    wall_s: float
    cpu_s: float
    timeline: Path | None
    """None where none of its processes trained with a framework that is known."""


def observing_environment(folder: Path, base: Mapping[str, str] = os.environ, *, power: bool = False) -> dict[str, str]:
    """`base` with what makes every Python in it record into `folder`."""
    search = [str(_FIRST_ON_THE_PATH), *filter(None, [base.get("PYTHONPATH")])]
    path = str(folder.absolute() / TIMELINE)
    added = {OBSERVE_VARIABLE: str(folder.absolute()), "PYTHONPATH": os.pathsep.join(search)}
    if power:
        added[timeline.POWER_VARIABLE] = "1"
    # Scripts that do know farandole find their ranks and clocks themselves.
    return {"FARANDOLE_TIMELINE": path, **base, **added}


def observe(command: Sequence[str], folder: Path, *, power: bool = False) -> Observed:
    """Run it to its end; CannotStart where that cannot be. What an earlier run left in `folder` is dropped."""
    path = folder.absolute() / TIMELINE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out {folder}: cannot be made ({error.strerror})") from error
    timeline.discard_parts(path)
    path.unlink(missing_ok=True)
    ended = run_command(command, observing_environment(folder, power=power))
    timeline.merge_parts(path)  # unless a script's rank 0 has done it
    return Observed(
        exit_code=ended.exit_code, wall_s=(ended.end_ns - ended.start_ns) / 1e9, cpu_s=ended.cpu_s,
        timeline=path if path.exists() else None,
    )  # fmt: skip
