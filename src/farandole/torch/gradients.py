"""From autograd's gradients to the gradients step() reads: hooks around a gradient plan.

As backward completes a parameter's gradient, a hook hands it to the plan: a large one as it lies, a small
one copied into its bucket. `synchronize()` hands over what backward did not make (as zeros), waits, and
leaves the reduced gradients in `p.grad`: the large ones where they were, the small ones as views of their
buckets. A gradient that no rank has made stays None, as in a run on one rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from farandole.comm import mpi
from farandole.comm.kernels import Reduction
from farandole.comm.plan import BUCKET_BYTES, Entry, GradientPlan, agree
from farandole.comm.process_sets import ProcessSet
from farandole.comm.team import Team, threads_allowed
from farandole.comm.world import current
from farandole.errors import SettingsError
from farandole.torch.compression import Compressor
from farandole.torch.tensors import as_array, as_tensor, numpy_name, staged

__all__ = ["GradientReducer", "ReducerSettings"]


@dataclass(kw_only=True, slots=True)
class ReducerSettings:
    """How gradients are reduced."""

    how: Reduction
    """Combine, multiply, divide."""
    compression: type[Compressor]
    """What they travel as."""
    passes: int
    """Backward passes that add up before a step."""
    sparse_as_dense: bool
    """Make sparse gradients dense instead of refusing them."""
    process_set: ProcessSet
    """The ranks that take part."""
    team: Team
    """Threads and statistics."""
    groups: dict[int, int] = field(default_factory=dict)
    """id of a parameter -> number of its group."""

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise SettingsError(f"backward_passes_per_step={self.passes}: must be 1 or more")


class _Slot:
    """One parameter in the plan."""

    __slots__ = ("copies", "handed", "name", "parameter", "passes", "result", "stand_in", "version", "view")

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name = name
        self.parameter = parameter
        self.view: torch.Tensor | None = None
        """Where it is packed, shaped like the parameter; None where it is reduced in place."""
        self.result: torch.Tensor | None = None
        """Where the node's window has the result, strided like the parameter."""
        self.copies = False
        """Whether results are copied out of the window, because somebody changes them in place."""
        self.passes = 0
        self.handed = False
        self.version = 0
        self.stand_in: torch.Tensor | None = None
        """Zeros for a gradient this rank did not make."""


def backward_order(
    parameters: Sequence[tuple[str, torch.Tensor]], groups: dict[int, int]
) -> list[tuple[str, torch.Tensor]]:
    """Last parameters first, as backward makes them; the members of a group together."""
    order = list(reversed(parameters))
    first: dict[int, int] = {}
    for position, (_, parameter) in enumerate(order):
        group = groups.get(id(parameter), -1)
        if group >= 0:
            first.setdefault(group, position)
    keyed = [(first.get(groups.get(id(p), -1), i), i, name, p) for i, (name, p) in enumerate(order)]
    return [(name, p) for _, _, name, p in sorted(keyed, key=lambda row: row[:2])]


class GradientReducer:
    """Reduces the gradients of some parameters. Collective to make: every rank of the set does."""

    def __init__(
        self, label: str, parameters: Sequence[tuple[str, torch.Tensor]], settings: ReducerSettings
    ) -> None:
        self.settings = settings
        self.parameters = list(parameters)
        self._label = label
        self._slots = [_Slot(name, p) for name, p in backward_order(parameters, settings.groups)]
        self._hooked: set[int] = set()
        self._in_flight = False
        self._plan = self._make_plan()
        for index, slot in enumerate(self._slots):
            buffer = self._plan.buffer(index)
            slot.view = None if buffer is None else as_tensor(buffer).view(slot.parameter.shape)
            result = self._plan.result(index)
            if result is not None:
                p = slot.parameter
                slot.result = as_tensor(result).as_strided(p.shape, p.stride())
        self._register_hooks()

    def _make_plan(self) -> GradientPlan:
        runtime = self.settings.process_set.runtime()
        label = f"{self._label}.{runtime.next_name('plan').rsplit('.', 1)[1]}"
        entries = [self._entry(slot) for slot in self._slots]
        _agree(runtime, self.settings.process_set, label, entries)
        team = self.settings.team
        allowed = threads_allowed(team.threads, mpi.thread_level())
        anywhere = any(staged(slot.parameter) for slot in self._slots)
        plan = GradientPlan(
            runtime,
            label,
            entries,
            how=self.settings.how,
            staged=anywhere or self.settings.compression.wire is not None,
            team=Team(threads=allowed, stats_every=team.stats_every),
            bucket_bytes=min(BUCKET_BYTES, current().fusion_bytes),
        )
        current().record.setdefault("plans", []).append(plan.describe())
        return plan

    def _entry(self, slot: _Slot) -> Entry:
        p = slot.parameter
        wire = self.settings.compression.travels_as(p.dtype)
        layout = "" if p.is_contiguous() else f"strides {tuple(p.stride())}"
        group = self.settings.groups.get(id(p), -1)
        return Entry(slot.name, numpy_name(wire), tuple(p.shape), layout, group)

    # Hooks

    def _register_hooks(self) -> None:
        """Also for parameters that have come to require a gradient since."""
        me = weakref.ref(self)
        for index, slot in enumerate(self._slots):
            if index not in self._hooked and slot.parameter.requires_grad:
                self._hooked.add(index)
                parameter: Any = slot.parameter
                parameter.register_post_accumulate_grad_hook(_hook(me, index))

    def produced(self, index: int) -> None:
        """Backward has added to a gradient."""
        slot = self._slots[index]
        if slot.handed:
            raise AssertionError(
                f"the gradient of {slot.name} was computed more than backward_passes_per_step="
                f"{self.settings.passes} times before step(). Increase backward_passes_per_step to add gradients "
                "up locally (or, for a parameter shared by reentrant checkpoints, use use_reentrant=False)."
            )
        slot.passes += 1
        if slot.passes == self.settings.passes:
            self._hand_over(index, slot)

    def _hand_over(self, index: int, slot: _Slot) -> None:
        p = slot.parameter
        grad = p.grad
        assert grad is not None
        if grad.is_sparse:
            grad = p.grad = self._dense(slot, grad)
        slot.handed = self._in_flight = True
        if slot.view is None:
            if not _lies_like(grad, p):
                grad = p.grad = torch.empty_like(p).copy_(grad)
            slot.version = grad._version
            self._plan.ready(index, _flat(grad))
        else:
            if grad.data_ptr() != slot.view.data_ptr():
                slot.view.copy_(grad)
            slot.version = grad._version
            self._plan.ready(index, None)

    def _dense(self, slot: _Slot, grad: torch.Tensor) -> torch.Tensor:
        if not self.settings.sparse_as_dense:
            raise SettingsError(
                f"the gradient of {slot.name} is sparse: pass sparse_as_dense=True to DistributedOptimizer, "
                "or build the embedding with sparse=False"
            )
        return grad.to_dense()

    # The end of a step

    @property
    def in_flight(self) -> bool:
        """Whether gradients are on their way."""
        return self._in_flight

    def synchronize(self) -> None:
        """Wait until every gradient is reduced. Collective: every rank of the set calls it."""
        for index, slot in enumerate(self._slots):
            if not slot.handed:
                self._hand_over_late(index, slot)
        changed = [s.name for s in self._slots if s.stand_in is None and _version(s.parameter) != s.version]
        try:
            counts = self._plan.finish()
        finally:
            self._in_flight = False
            for slot in self._slots:
                slot.passes, slot.handed = 0, False
        for index, (slot, count) in enumerate(zip(self._slots, counts.tolist())):
            slot.copies = slot.copies or self._plan.result_was_changed(index)
            self._deliver(slot, count)
        self._register_hooks()
        if changed:
            raise SettingsError(
                f"gradients were changed while they were being reduced: {', '.join(changed[:3])}. "
                "Call optimizer.synchronize() before clipping or scaling them, and step() inside "
                "`with optimizer.skip_synchronize():`."
            )

    def _hand_over_late(self, index: int, slot: _Slot) -> None:
        """A gradient that backward did not complete in this step."""
        p = slot.parameter
        if p.grad is not None:
            self._hand_over(index, slot)
        elif slot.view is not None:
            slot.view.zero_()
            slot.stand_in = slot.view
            self._plan.ready(index, None, present=False)
        else:
            slot.stand_in = torch.zeros_like(p)
            self._plan.ready(index, _flat(slot.stand_in), present=False)

    def _deliver(self, slot: _Slot, count: int) -> None:
        p, absent = slot.parameter, slot.stand_in
        slot.stand_in = None
        if count == 0:
            return
        if slot.result is not None and not slot.copies:
            p.grad = slot.result
        elif slot.view is None:
            target = p.grad if absent is None else absent
            assert target is not None
            if slot.result is not None and target.data_ptr() == slot.result.data_ptr():
                target = slot.result.clone()
            elif slot.result is not None:
                target.copy_(slot.result)
            p.grad = target
        elif slot.view.dtype == p.dtype and slot.view.device == p.device:
            p.grad = slot.view
        elif p.grad is None:
            p.grad = slot.view.to(p.device, p.dtype)
        else:
            p.grad.copy_(slot.view)

    def set_passes(self, passes: int) -> None:
        self.settings.passes = passes
        for slot in self._slots:
            slot.passes = 0

    def statistics(self) -> Any:
        return self._plan.statistics

    def close(self) -> None:
        self._plan.close()


def _hook(owner: weakref.ref[GradientReducer], index: int) -> Any:
    def produced(_: torch.Tensor) -> None:
        reducer = owner()
        if reducer is not None:
            reducer.produced(index)

    return produced


def _agree(runtime: Any, process_set: ProcessSet, label: str, entries: list[Entry]) -> None:
    from farandole.comm.collectives import allgather_object

    digest = hash(tuple(entries)) if runtime.transport.size == 1 else _digest(entries)
    digests = allgather_object(digest, f"plan.{label}", process_set)
    if len(set(digests)) > 1:
        agree(entries, allgather_object(entries, f"plan.{label}.entries", process_set), runtime.members)


def _digest(entries: list[Entry]) -> str:
    import hashlib

    return hashlib.blake2b(repr(entries).encode(), digest_size=16).hexdigest()


def _version(p: torch.Tensor) -> int:
    return -1 if p.grad is None else p.grad._version


def _lies_like(grad: torch.Tensor, p: torch.Tensor) -> bool:
    """Whether the gradient's memory has the parameter's layout, without gaps."""
    return grad.stride() == p.stride() and _dense_memory(grad)


def _dense_memory(tensor: torch.Tensor) -> bool:
    spans = sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n > 1)
    expected = 1
    for stride, count in spans:
        if stride != expected:
            return False
        expected *= count
    return True


def _flat(tensor: torch.Tensor) -> Any:
    return as_array(tensor.detach().as_strided((tensor.numel(),), (1,)))
