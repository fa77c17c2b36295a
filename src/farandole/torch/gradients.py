"""From autograd's gradients to the gradients step() reads: hooks around a gradient plan.

As backward completes a parameter's gradient, a hook hands it to the plan: a large one as it lies, a small
one copied into its bucket. `synchronize()` hands over what backward did not make (as zeros), waits, and
leaves the reduced gradients in `p.grad`: the large ones where they were, the small ones as views of their
buckets. A gradient that no rank has made stays None, as in a run on one rank.

With `ksteps`, gradients may be applied one step late: they are handed over after the step, and reduced while the next
batch is computed.

A sparse gradient is no business of the plan. In the first step in which a rank has one, all ranks see it in the step's
status, take the parameter out of the plan, and from then on gather its rows by name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from farandole.comm.gradients.interface import Entry, GradientPlan, PlanSettings
from farandole.comm.gradients.opening import open_plan
from farandole.comm.gradients.status import Kind
from farandole.comm.gradients.team import Team
from farandole.comm.named.compression import travels_as
from farandole.comm.named.process_sets import ProcessSet
from farandole.comm.named.submit import Sum
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.node.spans import phase
from farandole.errors import MismatchError, SettingsError
from farandole.torch.sparse import as_sparse, sparse_allreduce_async
from farandole.torch.tensors import as_array, as_tensor, numpy_name, staged

__all__ = ["GradientReducer", "ReducerSettings"]


@dataclass(kw_only=True, slots=True)
class ReducerSettings:
    """How gradients are reduced."""

    how: Reduction
    """Combine, multiply, divide."""
    wire: str | None
    """What wider floats travel as: `float16`, `bfloat16`, or None."""
    passes: int
    """Backward passes that add up before a step."""
    sparse_as_dense: bool
    """Make sparse gradients dense instead of gathering their rows."""
    process_set: ProcessSet
    """The ranks that take part."""
    team: Team
    """Threads and statistics."""
    groups: dict[int, int] = field(default_factory=dict)
    """id of a parameter -> number of its group."""
    ksteps: int = 0
    """Steps before gradients come one step late; negative: steps before they no longer do; 0: they never do."""

    def __post_init__(self) -> None:
        _check_passes(self.passes)


def _check_passes(passes: int) -> None:
    if passes < 1:
        raise SettingsError(f"backward_passes_per_step={passes}: must be 1 or more")


class _Slot:
    """One parameter in the plan."""

    __slots__ = (
        "copies", "dtype", "fresh", "gathered", "handed", "late", "name", "parameter", "passes", "place", "result", "sparse", "stand_in",
        "strides", "version", "view",
    )  # fmt: skip

    def __init__(self, name: str, parameter: torch.Tensor) -> None:
        self.name = name
        self.parameter = parameter
        self.strides = torch.empty_like(parameter, device="meta").stride()
        """Those of its gradient on every rank: the parameter's, without gaps."""
        self.dtype = parameter.dtype
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
        self.place = -1
        """Its number in the plan; -1 where it is not part of it."""
        self.sparse = False
        """Whether ranks gather its rows instead."""
        self.gathered: Callable[[], torch.Tensor] | None = None
        """Waits for the rows of all ranks, while they are under way."""
        self.fresh: torch.Tensor | None = None
        """This step's gradient, while that of the last one is applied."""
        self.late: torch.Tensor | None = None
        """The last step's gradient, while it is being reduced."""

    def empty(self) -> torch.Tensor:
        """Memory for a gradient; the parameter itself may have another layout by now."""
        p = self.parameter
        return torch.empty_strided(p.shape, self.strides, dtype=p.dtype, device=p.device)


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
        self,
        label: str,
        parameters: Sequence[tuple[str, torch.Tensor]],
        settings: ReducerSettings,
        name: str | None = None,
    ) -> None:
        """`name`: the plan's, alike on all ranks; None: by the order in which reducers are made."""
        self.settings = settings
        self.parameters = list(parameters)
        self._label = label
        self._name = name
        self._slots = [_Slot(name, p) for name, p in backward_order(parameters, settings.groups)]
        self._hooks: dict[int, Any] = {}
        weakref.finalize(self, _remove_all, self._hooks.values()).atexit = False
        self._in_flight = False
        self._steps = 0
        self.pending = False
        """Whether gradients that come late are on their way."""
        self._early: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        """Gradients that were reduced before a step, with their versions; only where reducing them again changes them."""
        self._plan = self._open_plan()
        self._register_hooks()

    def _open_plan(self) -> GradientPlan:
        """A plan of all gradients that are not sparse, and each one's place in it. Collective."""
        planned = [slot for slot in self._slots if not slot.sparse]
        plan = self._make_plan(planned)
        for place, slot in enumerate(planned):
            slot.place = place
            buffer = plan.buffer(place)
            slot.view = None if buffer is None else as_tensor(buffer).view(slot.parameter.shape)
            result = plan.result(place)
            slot.result = None
            if result is not None:
                slot.result = as_tensor(result).as_strided(slot.parameter.shape, slot.strides)
        return plan

    def _make_plan(self, planned: list[_Slot]) -> GradientPlan:
        settings = self.settings
        entries = [self._entry(slot) for slot in planned]
        elsewhere = any(staged(slot.parameter) for slot in planned)
        # What fails before this fails on this rank alone, which must not count a plan that no other rank makes.
        name, self._name = self._name or settings.process_set.runtime().next_plan(), None
        return open_plan(
            self,
            settings.process_set,
            self._label,
            name,
            entries,
            PlanSettings(how=settings.how, wire=settings.wire, elsewhere=elsewhere, team=settings.team),
            agreed=entries,
            more=f"ksteps={settings.ksteps}, {'device' if elsewhere else 'host'} tensors",
        )

    def _entry(self, slot: _Slot) -> Entry:
        p = slot.parameter
        dtype = travels_as(self.settings.wire, numpy_name(p.dtype))
        layout = "" if p.is_contiguous() else f"strides {tuple(p.stride())}"
        group = self.settings.groups.get(id(p), -1)
        return Entry(slot.name, dtype, tuple(p.shape), layout, group)

    # Hooks

    def _register_hooks(self) -> None:
        """Also for parameters that have come to require a gradient since."""
        me = weakref.ref(self)
        for index, slot in enumerate(self._slots):
            if index not in self._hooks and slot.parameter.requires_grad:
                parameter: Any = slot.parameter
                self._hooks[index] = parameter.register_post_accumulate_grad_hook(_hook(me, index))

    def produced(self, index: int) -> None:
        """Backward has added to a gradient."""
        slot = self._slots[index]
        if slot.handed:
            raise AssertionError(
                f"the gradient of {slot.name} was computed more than backward_passes_per_step="
                f"{self.settings.passes} times before step(). Increase backward_passes_per_step to add gradients "
                "up locally (or, for a parameter shared by reentrant checkpoints, use use_reentrant=False)."
            )
        if self._is_early(index, 1):
            raise self._reduced_twice(slot)
        slot.passes += 1
        if self.late:
            slot.handed = slot.passes == self.settings.passes
            self._in_flight = self._in_flight or slot.handed
        elif slot.passes == self.settings.passes:
            self._hand_over(slot)

    def _hand_over(self, slot: _Slot) -> None:
        p = slot.parameter
        grad = p.grad
        assert grad is not None
        if grad.requires_grad:  # backward(create_graph=True)
            grad = p.grad = grad.detach()
        if slot.sparse:
            self._gather(slot)
            return
        if grad.is_sparse and not self.settings.sparse_as_dense:
            slot.handed = self._in_flight = True
            self._hand_over_nothing(slot, Kind.SPARSE)
            return
        if grad.is_sparse:
            grad = p.grad = grad.to_dense()
        if grad.dtype != slot.dtype:
            raise SettingsError(
                f"the gradient of {slot.name} is {grad.dtype}, it was {slot.dtype} when DistributedOptimizer was "
                "called: convert the model first"
            )
        slot.handed = self._in_flight = True
        if slot.view is None:
            if grad.stride() != slot.strides and not _same_places(grad, slot.strides):
                grad = p.grad = slot.empty().copy_(grad)
            slot.version = grad._version
            self._plan.ready(slot.place, _flat(grad))
        else:
            if grad.data_ptr() != slot.view.data_ptr():
                with phase("MEMCPY_IN_FUSION_BUFFER"):
                    slot.view.copy_(grad)
            slot.version = grad._version
            self._plan.ready(slot.place, None)

    def _gather(self, slot: _Slot) -> None:
        """Send the rows of a sparse gradient, and ask for everybody's."""
        slot.handed = self._in_flight = True
        rows = as_sparse(slot.parameter.grad, slot.parameter)
        name = f"{self._plan.label}.{slot.name}"
        slot.gathered = sparse_allreduce_async(rows, name, Sum, self.settings.process_set)

    # The end of a step

    @property
    def in_flight(self) -> bool:
        """Whether gradients are on their way."""
        return self._in_flight

    def synchronize(self) -> None:
        """Wait until every gradient is reduced. Collective: every rank of the set calls it."""
        if self.late:
            self._take_late()
            return
        missing = [(index, slot) for index, slot in enumerate(self._slots) if not slot.handed]
        for index, slot in missing:
            if self._is_early(index, 0):
                raise self._reduced_twice(slot)
        for _, slot in missing:
            self._hand_over_missing(slot)
        self._collect()

    def synchronize_early(self) -> None:
        """The same before a step, which then finds the gradients reduced. Collective."""
        self.synchronize()
        adds_up = self.settings.how.divide == 1 and self.settings.process_set.runtime().transport.size > 1
        if adds_up and not self.late:
            grads = [(index, slot.parameter.grad) for index, slot in enumerate(self._slots)]
            self._early = {index: (weakref.ref(g), g._version) for index, g in grads if g is not None}

    def _is_early(self, index: int, changes: int) -> bool:
        """Whether a gradient is the reduced one still, after so many changes in place."""
        if index not in self._early:
            return False
        (reduced, version), grad = self._early[index], self._slots[index].parameter.grad
        return grad is not None and reduced() is grad and grad._version == version + changes

    def _reduced_twice(self, slot: _Slot) -> AssertionError:
        return AssertionError(
            f"the gradient of {slot.name} was reduced already, by synchronize(), and op=Sum would "
            "add it up over the ranks once more: call step() or zero_grad() before the next backward(), or set "
            "backward_passes_per_step to add gradients up locally."
        )

    def _collect(self) -> None:
        """Wait for what was handed over, and leave it in `p.grad`."""
        planned = [slot for slot in self._slots if not slot.sparse]
        changed = [s.name for s in planned if s.stand_in is None and _version(s.parameter) != s.version]
        try:
            status = self._plan.finish()
        except BaseException:
            for slot in self._slots:
                slot.gathered = slot.stand_in = None
            raise
        finally:
            self._in_flight = False
            for slot in self._slots:
                slot.passes, slot.handed = 0, False
        found = []
        for slot, kind in zip(planned, status.kinds):
            slot.copies = slot.copies or self._plan.changed(slot.place)
            if kind != Kind.SPARSE:
                self._deliver(slot, exists=bool(kind))
            else:
                found.append(slot)
                slot.sparse, slot.stand_in = True, None
                self._gather(slot)
        try:
            self._take_gathered()
        except BaseException:
            self._forget_gathered(found)
            raise
        if found:
            self._plan.retire()
            self._plan = self._open_plan()
        self._register_hooks()
        if changed:
            raise SettingsError(
                f"gradients were changed while they were being reduced: {', '.join(changed[:3])}. "
                "Call optimizer.synchronize() before clipping or scaling them, and step() inside "
                "`with optimizer.skip_synchronize():`."
            )

    # One step late

    @property
    def late(self) -> bool:
        """Whether this step applies the gradients of the last one."""
        first = self.settings.ksteps
        return self._steps >= first if first > 0 else self._steps < -first

    def _take_late(self) -> None:
        """Put this step's gradients aside, and the last one's, reduced, into `p.grad`."""
        for slot in self._slots:
            slot.fresh = slot.parameter.grad
        self.take_pending()

    def take_pending(self) -> bool:
        """Leave gradients that are still on their way in `p.grad`, reduced; whether there were any. Collective."""
        for slot in self._slots:
            slot.parameter.grad, slot.late = slot.late, None
            slot.passes, slot.handed = 0, False
        self._in_flight = False
        pending, self.pending = self.pending, False
        if pending:
            self._collect()
        return pending

    def stepped(self) -> bool:
        """After a step: hand its gradients over, if they come late; whether to step once more, with them."""
        self._early = {}
        late = self.late
        self._steps += 1
        if not late:
            return False
        for slot in self._slots:
            slot.parameter.grad, slot.fresh = slot.fresh, None
            self._hand_over_missing(slot)
            slot.late, slot.parameter.grad = slot.parameter.grad, None
            slot.handed = False
        self._in_flight = False
        self.pending = True
        return not self.late and self.take_pending()  # the last late step: none is lost

    def _take_gathered(self) -> None:
        """The rows of all ranks, where any rank has some."""
        how = self.settings.how
        for slot in self._slots:
            if slot.gathered is not None:
                rows, slot.gathered = self._rows_of_all(slot), None
                slot.handed, self._in_flight = False, False
                if rows._nnz():
                    slot.parameter.grad = rows * (how.multiply / how.divide)

    def _rows_of_all(self, slot: _Slot) -> torch.Tensor:
        assert slot.gathered is not None
        try:
            return slot.gathered()
        except MismatchError as error:
            if not self.settings.process_set.runtime().engine.joined:
                raise
            raise MismatchError(
                f"the gradient of {slot.name} is sparse: {error} Or pass sparse_as_dense=True to DistributedOptimizer."
            ) from error

    def _forget_gathered(self, found: list[_Slot]) -> None:
        """After rows that did not come: as before the step. Those `found` in it are still in the plan of all ranks."""
        self._in_flight = False
        for slot in self._slots:
            slot.gathered, slot.handed = None, False
        for slot in found:
            slot.sparse = False

    def _hand_over_missing(self, slot: _Slot) -> None:
        """A gradient that backward did not complete in this step."""
        if slot.sparse:
            self._gather(slot)
        elif slot.parameter.grad is not None:
            self._hand_over(slot)
        else:
            self._hand_over_nothing(slot, Kind.ABSENT)

    def _hand_over_nothing(self, slot: _Slot, kind: Kind) -> None:
        """Zeros in the place of a gradient that this rank does not have, or not for the plan."""
        if slot.view is not None:
            slot.view.zero_()
            slot.stand_in = slot.view
            self._plan.ready(slot.place, None, kind)
        else:
            slot.stand_in = slot.empty().zero_()
            self._plan.ready(slot.place, _flat(slot.stand_in), kind)

    def _deliver(self, slot: _Slot, *, exists: bool) -> None:
        p, absent = slot.parameter, slot.stand_in
        slot.stand_in = None
        if not exists:
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
        else:
            with phase("MEMCPY_OUT_FUSION_BUFFER"):
                p.grad = slot.view.to(p.device, p.dtype) if p.grad is None else p.grad.copy_(slot.view)

    def set_passes(self, passes: int) -> None:
        _check_passes(passes)
        self.settings.passes = passes
        for slot in self._slots:
            slot.passes = 0

    def statistics(self) -> Any:
        return self._plan.statistics

    def retire(self) -> None:
        """Reduce nothing more, on this rank."""
        self._plan.retire()
        _remove_all(self._hooks.values())


def _hook(owner: weakref.ref[GradientReducer], index: int) -> Any:
    def produced(_: torch.Tensor) -> None:
        reducer = owner()
        if reducer is not None:
            reducer.produced(index)

    return produced


def _remove_all(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _version(p: torch.Tensor) -> int:
    return -1 if p.grad is None else p.grad._version


def _same_places(tensor: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Whether elements lie where `strides` have them; those of dimensions of length 1 do not matter."""
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides))


def _flat(tensor: torch.Tensor) -> Any:
    if tensor.is_contiguous():
        return as_array(tensor).reshape(-1)
    return as_array(tensor.detach().as_strided((tensor.numel(),), (1,)))
