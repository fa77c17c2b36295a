"""What a checkpoint is made of, and how that becomes files and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from farandole.checkpoint.generators import NumpyGenerator
from farandole.checkpoint.tree import ArrayInfo, Flat, flatten, unflatten
from farandole.comm.bytes.transport import AnyArray
from farandole.errors import CheckpointError, SettingsError

__all__ = ["Checked", "Content", "Guarded", "Part", "Progress", "as_part", "check_fit", "content", "differences", "put", "taken", "taken_own"]

_SHOWN = 8


class Part(Protocol):
    """Whatever has a state made of numbers, strings, NumPy arrays, and lists, tuples and dicts of them."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@runtime_checkable
class Checked(Protocol):
    """A part that can tell beforehand whether a state fits."""

    def misfits(self, state: Any) -> list[str]:
        """What does not fit, in words; arrays of `state` are given as ArrayInfo."""
        ...


@runtime_checkable
class Guarded(Protocol):
    """A part that may not be worth saving."""

    def check_before_save(self) -> None:
        """CheckpointError where it is not."""
        ...


@dataclass(kw_only=True, slots=True)
class Progress:
    """How far training has come, over all its starts."""

    step: int = 0
    epoch: int = 0
    """How many are complete."""
    step_in_epoch: int = 0
    train_s: float = 0.0
    energy_j: float | None = None
    """Joules of all nodes up to the last save; None where they are not known."""
    energy_provenance: str = ""
    """`measured-node`, `measured-component`, `modelled` or `none`; empty where the script has set the joules itself."""
    energy_reason: str = ""
    """Why there are none."""


class Values:
    """A dict as a part: its values are put back into it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def state_dict(self) -> Any:
        return self._values

    def load_state_dict(self, state: Any) -> None:
        self._values.clear()
        self._values.update(state)


def as_part(name: str, value: Any) -> Part:
    """A dict, a NumPy generator, or whatever has `state_dict()` and `load_state_dict()`, as a part."""
    if isinstance(value, dict):
        return Values(value)
    if isinstance(value, np.random.Generator):
        return NumpyGenerator(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        part: Part = value
        return part
    raise SettingsError(
        f"{name} is a {type(value).__name__}, which has no state_dict() and load_state_dict(). Put values into a dict: "
        f"{name}={{'value': ...}}"
    )


class Content(NamedTuple):
    """What goes into the files."""

    state: dict[str, Any]
    flat: Flat


def taken(parts: Mapping[str, Part]) -> Flat:
    return flatten({name: part.state_dict() for name, part in parts.items()}, "")


def taken_own(parts: Mapping[str, Part], rank: int) -> Flat:
    """The state that only this rank has."""
    return flatten({name: part.state_dict() for name, part in parts.items()}, f"ranks/{rank}")


def content(progress: Progress, common: Flat, by_rank: list[Flat]) -> Content:
    arrays: dict[str, AnyArray] = dict(common.arrays)
    for own in by_rank:
        arrays |= own.arrays
    state = {
        "progress": asdict(progress),
        "parts": common.skeleton,
        "ranks": [own.skeleton for own in by_rank],
    }
    return Content(state, Flat(None, arrays, common.held))


def differences(parts: Mapping[str, Part], state: Mapping[str, Any], arrays: Mapping[str, ArrayInfo]) -> list[str]:
    """Where a checkpoint does not fit the script."""
    found = []
    for name, part in parts.items():
        if name not in state["parts"]:
            found.append(f"it has no {name!r}, only {', '.join(state['parts'])}")
        elif isinstance(part, Checked):
            found += [f"{name}: {misfit}" for misfit in part.misfits(unflatten(state["parts"][name], arrays))]
    return found


def check_fit(found: list[list[str]], where: str) -> None:
    """`found` is what each rank has to say."""
    for rank, misfits in enumerate(found):
        if misfits:
            more = f"\n  and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
            lines = "".join(f"\n  {misfit}" for misfit in misfits[:_SHOWN])
            raise CheckpointError(f"{where} is not of this script (seen by rank {rank}):{lines}{more}")


def put(parts: Mapping[str, Part], skeletons: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> None:
    """Give every part its state."""
    for name, part in parts.items():
        if name in skeletons:
            part.load_state_dict(unflatten(skeletons[name], arrays))
