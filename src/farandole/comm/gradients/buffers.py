"""Gradients in a framework's own memory, reduced at once: the plan for graphs that call back when all are complete.

    copy     small gradients go into the plan's buckets; large ones stay where the framework has them
    reduce   by the plan, with nothing negotiated
    return   the results: in the framework's memory where it lets us write (`in_place`), otherwise in ours,
             the large ones in the node's window

A rank that has ended its training takes part once more, with nothing but that state (status.py): ranks that are still training
then raise, instead of waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from farandole.comm.bytes import mpi
from farandole.comm.bytes.transport import AnyArray
from farandole.comm.gradients.interface import Entry, GradientPlan, PlanSettings, aligned
from farandole.comm.gradients.opening import open_plan
from farandole.comm.gradients.status import State
from farandole.comm.gradients.team import Statistics, Team
from farandole.comm.named.compression import travels_as
from farandole.comm.named.process_sets import ProcessSet
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.node.spans import phase
from farandole.errors import SettingsError

__all__ = ["BufferReducer", "BufferSettings"]


@dataclass(kw_only=True, slots=True)
class BufferSettings:
    """How gradients are reduced."""

    how: Reduction
    """Combine, multiply, divide."""
    wire: str | None
    """What wider floats travel as: `float16`, `bfloat16`, or None."""
    process_set: ProcessSet
    """The ranks that take part."""
    team: Team
    """Threads and statistics."""


class BufferReducer:
    """Reduces one list of gradients, step after step. Collective to make: every rank of the set does."""

    def __init__(
        self, label: str, name: str, entries: Sequence[Entry], settings: BufferSettings, *, in_place: bool
    ) -> None:
        """`entries`: gradients as the framework has them. `name`: the plan's, alike on all ranks. `in_place`: whether the framework's memory may be written to."""
        self.settings = settings
        self._in_place = in_place
        self.entries = list(entries)
        self.copied_bytes = 0
        """Bytes of gradients copied on this rank so far, by this package."""
        # By size, so that small ones share buckets.
        self._order = sorted(range(len(entries)), key=lambda i: self.entries[i].nbytes)
        self._plan = self._open_plan(label, name)
        self._copies = [False] * len(entries)
        self._own: dict[int, AnyArray] = {}
        transport = settings.process_set.runtime().transport
        self.changes_nothing = transport.size == 1 and settings.wire is None and not settings.how.scales
        """Whether a reduction leaves gradients as they are: a graph that is not interrupted for it is faster."""

    def _open_plan(self, label: str, name: str) -> GradientPlan:
        settings = self.settings
        _check_threads(settings.process_set.runtime().transport.size)
        listed = [entry._replace(dtype=travels_as(settings.wire, entry.dtype)) for entry in self.entries]
        return open_plan(
            self,
            settings.process_set,
            label,
            name,
            [listed[i] for i in self._order],
            PlanSettings(
                how=settings.how,
                wire=settings.wire,
                team=settings.team,
                in_place=self._in_place,
                at_once=True,
            ),
            agreed=listed,
            more=f"times {settings.how.multiply:g}, results {'in place' if self._in_place else 'in other memory'}",
        )

    # A step

    def reduce(self, arrays: Sequence[AnyArray], outs: Sequence[AnyArray] | None = None) -> list[AnyArray]:
        """The reduced gradients: in `outs`, or in memory that is good until the next step. Collective.

        With `in_place`, an array and its out may be the same memory.
        """
        held = [self._hand_over(place, arrays[i]) for place, i in self._places()]
        self._plan.finish()
        results: list[AnyArray] = [np.empty(0)] * len(arrays)
        for (place, i), result in zip(self._places(), held):
            results[i] = self._take(place, i, result, None if outs is None else outs[i])
        return results

    def _places(self) -> Iterable[tuple[int, int]]:
        """(place in the plan, number) of every gradient."""
        return enumerate(self._order)

    def _hand_over(self, place: int, array: AnyArray) -> AnyArray:
        """Give a gradient to the plan; where its result will be."""
        flat = array.reshape(-1)
        view = self._plan.buffer(place)
        if view is not None:
            with phase("MEMCPY_IN_FUSION_BUFFER"):
                self._copy(view, flat)
            self._plan.ready(place, None)
            return view
        result = self._plan.result(place)
        if result is None and not self._in_place:
            flat = self._copied(place, flat)
        self._plan.ready(place, flat)
        return flat if result is None else result

    def _copied(self, place: int, flat: AnyArray) -> AnyArray:
        """A large gradient that may not be written to, and has no place in the window: in memory of its own."""
        if place not in self._own:
            self._own[place] = aligned(flat.size, flat.dtype)
        self._copy(self._own[place], flat)
        return self._own[place]

    def _take(self, place: int, index: int, held: AnyArray, out: AnyArray | None) -> AnyArray:
        """A result as the framework wants it; `held` is where the plan has left it."""
        entry = self.entries[index]
        if out is not None:
            if held.ctypes.data != out.ctypes.data:
                with phase("MEMCPY_OUT_FUSION_BUFFER"):
                    self._copy(out.reshape(-1), held)
            return out
        # Whoever changes a result in the window pays for every page: copying it at once is cheaper.
        self._copies[index] = self._copies[index] or self._plan.changed(place)
        if self._copies[index] or held.dtype != entry.numpy_dtype:
            target = aligned(held.size, entry.numpy_dtype)
            self._copy(target, held)
            held = target
        return held.reshape(entry.shape)

    def _copy(self, target: AnyArray, source: AnyArray) -> None:
        with np.errstate(over="ignore"):  # an overflow is a result, which a loss scaler looks at
            np.copyto(target, source, casting="unsafe")
        self.copied_bytes += target.nbytes

    def end(self) -> None:
        """This rank has ended its training: raise where others have not. Collective."""
        self._plan.end_step(State.ENDED)

    @property
    def statistics(self) -> Statistics:
        return self._plan.statistics

    def summary(self) -> dict[str, float]:
        """Steps, bytes, seconds of communication, those that training waited for, and bytes copied for it."""
        found = self.statistics
        return {
            "steps": found.steps,
            "bytes": found.nbytes,
            "seconds": found.busy_s,
            "exposed_s": found.exposed_s,
            "copied_bytes": self.copied_bytes,
        }


def _check_threads(size: int) -> None:
    level = mpi.thread_level()
    if size > 1 and level in ("single", "funneled"):
        raise SettingsError(
            f"MPI gives thread level {level}: TensorFlow and JAX call back from threads of their own, which needs "
            "serialized or multiple. Use another MPI library (`farandole doctor` shows which is used)."
        )
