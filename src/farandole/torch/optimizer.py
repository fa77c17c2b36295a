"""DistributedOptimizer: any torch optimizer, with gradients averaged over the ranks.

The given optimizer itself gets a class of the same name: it keeps its state, its parameter groups, its
hooks, and the schedulers that know it.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from farandole.comm.gradients.opening import reduction, taking_part
from farandole.comm.gradients.team import Team
from farandole.comm.named.compression import wire_of
from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.node.arithmetic import Op
from farandole.errors import SettingsError
from farandole.torch.adasum import StepsCombined
from farandole.torch.compression import Compression, Compressor
from farandole.torch.gradients import GradientReducer, ReducerSettings
from farandole.torch.ops import allreduce
from farandole.torch.scaler import reduce_before_unscaling

__all__ = ["DistributedOptimizer"]


class _Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer adds to an optimizer's class."""

    _farandole_reducer: GradientReducer
    _farandole_names: dict[int, str]
    _farandole_synchronized: str
    """`no`, `asked` (by synchronize()) or `implied` (by a GradScaler)."""
    _farandole_skip: bool
    _farandole_warned: bool

    def synchronize(self) -> None:
        """Wait until every gradient is reduced, to clip or look at them before step(). Collective."""
        self._farandole_check_parameters()
        self._farandole_reducer.synchronize_early()
        self._farandole_synchronized = "asked"

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() inside does not synchronise: synchronize() was called before."""
        self._farandole_skip = True
        try:
            yield
        finally:
            self._farandole_skip = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce the gradients, then step. With a closure, its loss is averaged over the ranks."""
        reducer = self._farandole_reducer
        if closure is not None:
            if reducer.settings.ksteps:
                raise SettingsError("step(closure) computes gradients to use at once: ksteps must be 0")
            return super().step(self._farandole_closure(closure))
        if not self._farandole_skip:
            self._farandole_synchronize_for_step()
        self._farandole_synchronized = "no"
        done = super().step()
        return super().step() if reducer.stepped() else done

    # torch wraps a class's step() to call hooks and profile; the step() below this one is wrapped already.
    step.hooked = True  # type: ignore[attr-defined]

    def drain(self) -> None:
        """With `ksteps`: apply the gradients that are still on their way, at the end. Collective."""
        if self._farandole_reducer.take_pending():
            super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._farandole_reducer.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize(): gradients that are being reduced would be lost"
            )
        self._farandole_synchronized = "no"
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train more parameters. Collective: every rank of the set calls it."""
        old = self._farandole_reducer
        if old.in_flight:
            raise AssertionError("add_param_group() was called after backward() but before step()")
        if old.pending:
            raise AssertionError("add_param_group() with gradients one step late on their way: call drain() first")
        super().add_param_group(param_group)
        old.retire()
        parameters = _named(self.param_groups, self._farandole_names)
        self._farandole_reducer = GradientReducer(type(self).__name__, parameters, old.settings)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add the gradients of this many backward passes up before a step."""
        self._farandole_reducer.set_passes(passes)

    def communication_statistics(self) -> dict[str, float]:
        """Steps, bytes, seconds and exposed seconds of communication since the last printed statistics."""
        found = self._farandole_reducer.statistics()
        return {
            "steps": found.steps,
            "bytes": found.nbytes,
            "seconds": found.busy_s,
            "exposed_s": found.exposed_s,
        }

    def _farandole_before_unscaling(self) -> None:
        """Reduce the gradients, so that an overflow on one rank is seen on all. Collective."""
        if self._farandole_synchronized == "no" or self._farandole_reducer.in_flight:
            self._farandole_check_parameters()
            self._farandole_reducer.synchronize_early()
            self._farandole_synchronized = "implied"

    def _farandole_after_scaled_step(self) -> None:
        """Also where the scaler has skipped the step."""
        self._farandole_synchronized = "no"

    def _farandole_synchronize_for_step(self) -> None:
        if self._farandole_synchronized == "no" or self._farandole_reducer.in_flight:
            self._farandole_check_parameters()
            self._farandole_reducer.synchronize()
        elif self._farandole_synchronized == "asked" and not self._farandole_warned:
            self._farandole_warned = True
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). Put step() "
                "inside `with optimizer.skip_synchronize():`. The gradients are not reduced a second time.",
                stacklevel=3,
            )

    def _farandole_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            if not self._farandole_skip:
                self._farandole_synchronize_for_step()
            self._farandole_synchronized = "no"
            return self._farandole_reduced_loss(loss)

        return reduced

    def _farandole_reduced_loss(self, loss: Any) -> Any:
        """The loss whose gradient was reduced: a line search that saw another on each rank would part them."""
        if not isinstance(loss, torch.Tensor | int | float):
            return loss
        settings = self._farandole_reducer.settings
        op = Op.SUM if settings.how.divide == 1 else Op.AVERAGE
        if isinstance(loss, torch.Tensor):
            return allreduce(loss.detach(), op=op, process_set=settings.process_set)
        number = torch.tensor(loss, dtype=torch.float64)
        return allreduce(number, op=op, process_set=settings.process_set).item()

    def _farandole_check_parameters(self) -> None:
        held = sum(len(group["params"]) for group in self.param_groups)
        known = len(self._farandole_reducer.parameters)
        if held != known:
            raise SettingsError(
                f"the optimizer has {held} parameters, {known} of which are reduced: "
                "add parameters with optimizer.add_param_group()"
            )


AnyOptimizer = TypeVar("AnyOptimizer", bound=torch.optim.Optimizer)


def DistributedOptimizer(
    optimizer: AnyOptimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: Op | int = Op.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    team: Team | None = None,
    ksteps: int = 0,
) -> AnyOptimizer:
    """The optimizer, stepping with gradients reduced over the ranks. Collective: every rank calls it.

    `ksteps=k`: after k steps, gradients are reduced while the next batch is computed and applied one step late;
    `ksteps=-k`: only in the first k steps they are. Call `drain()` at the end, before a checkpoint or a change of parameters.
    """
    if isinstance(optimizer, _Distributed | StepsCombined):
        raise SettingsError("the optimizer is distributed already: wrap it once")
    names = _checked_names(optimizer, named_parameters)
    process_set = taking_part(process_set)
    size = process_set.runtime().transport.size
    if Op(op) == Op.ADASUM:
        if ksteps:
            raise SettingsError("op=Adasum combines steps, which cannot come late: ksteps must be 0")
        return _combining_steps(optimizer, compression, process_set)
    settings = ReducerSettings(
        how=reduction("DistributedOptimizer", op, size, predivide=gradient_predivide_factor, others=" or Adasum"),
        wire=wire_of(compression, Compression),
        passes=backward_passes_per_step,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        team=team or Team(),
        groups=_groups(optimizer, groups if groups is not None else num_groups),
        ksteps=ksteps,
    )
    reducer = GradientReducer(type(optimizer).__name__, _named(optimizer.param_groups, names), settings)
    optimizer.__dict__.update(
        _farandole_reducer=reducer,
        _farandole_names=names,
        _farandole_synchronized="no",
        _farandole_skip=False,
        _farandole_warned=False,
    )
    reduce_before_unscaling()
    return _with(_Distributed, optimizer)


def _with(front: type, optimizer: AnyOptimizer) -> AnyOptimizer:
    """The optimizer itself, with a class in front of its own."""
    optimizer.__class__ = type(type(optimizer).__name__, (front, type(optimizer)), {})
    if "step" in optimizer.__dict__:
        _put_step_behind_scheduler(optimizer)
    return optimizer


def _combining_steps(
    optimizer: AnyOptimizer, compression: type[Compressor], process_set: ProcessSet
) -> AnyOptimizer:
    size = process_set.runtime().transport.size
    if size & (size - 1):
        raise SettingsError(f"op=Adasum needs 2, 4, 8, ... ranks, there are {size}. Use op=Average.")
    optimizer.__dict__.update(_farandole_set=process_set, _farandole_compression=compression)
    return _with(StepsCombined, optimizer)


def _put_step_behind_scheduler(optimizer: torch.optim.Optimizer) -> None:
    """A scheduler made before has put a step() that it counts in front of the class's, with the old class's in it."""
    me = weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        found: Any = me()
        found._opt_called = True
        return type(found).step(found, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.__dict__["step"] = step


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[int, str]:
    if named_parameters is None:
        return {}
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise SettingsError("named_parameters must be (name, parameter) pairs, e.g. model.named_parameters()")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise SettingsError(f"named_parameters has names twice: {', '.join(twice[:5])}")
    known = {id(p): name for name, p in pairs}
    unnamed = sum(id(p) not in known for group in optimizer.param_groups for p in group["params"])
    if unnamed:
        raise SettingsError(
            f"named_parameters lacks names for {unnamed} parameters of the optimizer: "
            "pass model.named_parameters(), or nothing"
        )
    return known


def _named(groups: list[dict[str, Any]], names: dict[int, str]) -> list[tuple[str, torch.Tensor]]:
    return [
        (names.get(id(p), f"parameter.{g}.{i}"), p)
        for g, group in enumerate(groups)
        for i, p in enumerate(group["params"])
    ]


def _groups(
    optimizer: torch.optim.Optimizer, groups: int | Sequence[Sequence[torch.Tensor]]
) -> dict[int, int]:
    """Which parameters are reduced together, by group number."""
    if not isinstance(groups, int):
        return {id(p): number for number, members in enumerate(groups) for p in members}
    if groups < 0:
        raise SettingsError(f"num_groups={groups}: must be 0 or more")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    width = -(-len(parameters) // groups) if groups else 0
    return {id(p): i // width for i, p in enumerate(parameters)} if groups else {}
