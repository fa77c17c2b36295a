"""A gradient plan, as optimizers and tapes of all doors see it, whoever carries it out.

The plan lists every gradient of an optimizer, in the order in which backward makes them. All ranks agree on it once; in a step
nothing is negotiated:

    ready     a gradient is complete; the plan reduces it when it sees fit
    finish    every gradient of this rank was handed over: wait for those of all ranks
    end_step  instead of finish, on a rank that has no more gradients for this step

`host.py` has the implementation for arrays in host memory. `opening.py` decides which one a plan gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.gradients.status import Kind, State, Status
from farandole.comm.gradients.team import Statistics, Team
from farandole.comm.named.engine import Engine
from farandole.comm.node.arithmetic import Reduction, bfloat16

__all__ = ["BUCKET_BYTES", "Entry", "GradientPlan", "PlanSettings", "aligned"]

BUCKET_BYTES = 4 << 20
CACHE_LINE = 64


class Entry(NamedTuple):
    """One gradient, as it travels."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = ""
    """Whatever else must agree, e.g. strides."""
    group: int = -1
    """Entries of one group (>= 0) share a bucket, whatever its size."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        return bfloat16 if self.dtype == "bfloat16" else np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.elements * self.numpy_dtype.itemsize


@dataclass(kw_only=True, slots=True)
class PlanSettings:
    """How a plan reduces."""

    how: Reduction
    """Combine, multiply, divide."""
    wire: str | None = None
    """What wider floats travel as: `float16`, `bfloat16`, or None."""
    elsewhere: bool = False
    """Whether gradients are in a device's memory."""
    team: Team
    """Threads and statistics."""
    bucket_bytes: int = BUCKET_BYTES
    """How much of small gradients is packed together."""
    in_place: bool = False
    """Whether the results of large ones are left where the gradients were."""
    at_once: bool = False
    """Whether each rank hands all gradients over together, and has all of them."""

    @property
    def staged(self) -> bool:
        """Whether even large gradients are copied before they travel."""
        return self.elsewhere or self.wire is not None


class GradientPlan(Protocol):
    """The gradients of one optimizer, by number."""

    label: str
    statistics: Statistics

    def buffer(self, index: int) -> AnyArray | None:
        """Where a packed gradient goes, flat; None for one that is reduced where it lies."""
        ...

    def result(self, index: int) -> AnyArray | None:
        """Where a large gradient's result is read, flat; None where it is left in place.

        It may be changed in place (the rank then gets pages of its own), at the price of copying them.
        """
        ...

    def changed(self, index: int) -> bool:
        """Whether this rank had changed the previous result in place."""
        ...

    def ready(self, index: int, array: AnyArray | None, kind: Kind = Kind.DENSE) -> None:
        """A gradient is complete: in its buffer, or in `array` (flat), which is reduced in place.

        `kind`: what this rank has; where that is not a dense gradient, zeros are handed over in its place.
        """
        ...

    def finish(self) -> Status:
        """Wait for every gradient, and say which there are; raise where ranks do not end the step alike. Collective."""
        ...

    def end_step(self, state: State) -> None:
        """Take part in a step with a state alone, and zeros for what this rank has not handed over. Collective.

        Raises where other ranks do not end the step alike. ENDED is for a rank that has handed over nothing: where all have ended,
        nothing need move. DROPPED is for one that has not handed over all gradients: neighbours see it with the last one.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What it is, for `farandole.describe()`."""
        ...

    # Ranks that have joined

    engine: Engine
    """Of the ranks that take part."""

    @property
    def in_step(self) -> bool:
        """Whether gradients are on their way."""
        ...

    def tell_joined(self) -> None:
        """Let ranks that have joined know which step this rank is in, once."""
        ...

    def step_with_zeros(self, sequence: int) -> None:
        """Take part in a step with zeros, unless this rank has taken part in it with gradients."""
        ...

    # The end

    @property
    def retired(self) -> bool: ...

    def belong_to(self, owner: object) -> None:
        """Retire soon after the owner is gone."""
        ...

    def retire(self) -> None:
        """Reduce nothing more, on this rank alone."""
        ...


def aligned(count: int, dtype: np.dtype[Any]) -> AnyArray:
    """Zeros from a cache line on: frameworks take such memory as it is, and copy other memory."""
    memory = np.zeros(count * dtype.itemsize + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + count * dtype.itemsize].view(dtype)
