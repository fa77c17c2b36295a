"""Gradient reduction: from the gradient backward leaves in `p.grad` to the one step() finds there.

Each turn begins with a gradient as autograd leaves it: a tensor that this rank has just made and written. It
ends when `p.grad` holds the reduced gradient. Ours may lie in pages that another rank has written, so that
reading it can cost more than reading memory of one's own: a second figure includes one pass over all of it,
on every side.

We average, as optimizers do. The peers only sum: they are spared the division.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from bench.cases import Case
from bench.contest import Contestant, Ranks, contest
from farandole.comm.bytes import mpi
from farandole.comm.gradients.team import Team
from farandole.comm.named.process_sets import global_process_set
from farandole.comm.node.arithmetic import Reduction
from farandole.comm.node.shared import ResultWindow
from farandole.comm.node.two_level import TwoLevel
from farandole.torch.gradients import GradientReducer, ReducerSettings

__all__ = ["measure"]

_READ = " + read"


def measure(ranks: Ranks, *, mib: list[int], budget_s: float) -> list[Case]:
    """For each size: a gradient, the same and read, and arrays that lie where neighbours read them already."""
    ranks.join_gloo()
    cases = []
    for size in mib:
        ranks.say(f"gradients: {size} MiB on {ranks.size} ranks")
        cases += [*_gradient(ranks, size, budget_s), _in_window(ranks, size, budget_s / 3)]
    ranks.leave_gloo()
    return cases


def _gradient(ranks: Ranks, mib: int, budget_s: float) -> list[Case]:
    values = _values(mib)
    reducer = _reducer(Parameter(values.clone()), ranks.size)
    sums, averages = _expected(values, ranks.size)
    mine = values * (ranks.rank + 1)
    contestants = [_Turns("farandole", reducer.parameters[0][1], mine, averages).of(_ours(reducer))]
    by_hand = Parameter(values.clone())
    for name, reduce in _peers(ranks, torch.empty_like(values)).items():
        contestants.append(_Turns(name, by_hand, mine, sums).of(reduce))
    samples = contest(ranks, contestants, budget_s=budget_s)
    reducer.retire()
    reduced = {c.name: samples[c.name] for c in contestants}
    read = {c.name: samples[c.name + _READ] for c in contestants}
    return [
        Case(what=f"gradient {mib} MiB", samples=reduced, notes={"mib": mib, "kind": "reduced"}),
        Case(what=f"gradient {mib} MiB{_READ}", samples=read, notes={"mib": mib, "kind": "read"}),
    ]


def _values(mib: int) -> Tensor:
    return torch.rand(mib << 18, generator=torch.Generator().manual_seed(7))


def _expected(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The sum and the average of what ranks hand in, which is `values` times 1, 2, 3, ..."""
    sums = values * (size * (size + 1) / 2)
    return sums, sums / size


def _reducer(parameter: Parameter, size: int) -> GradientReducer:
    """As DistributedOptimizer makes it with its defaults."""
    settings = ReducerSettings(
        how=Reduction("sum", 1.0, size),
        wire=None,
        passes=1,
        sparse_as_dense=False,
        process_set=global_process_set,
        team=Team(),
    )
    return GradientReducer("bench", [("gradient", parameter)], settings)


def _ours(reducer: GradientReducer) -> Callable[[Tensor], None]:
    def reduce(_: Tensor) -> None:
        reducer.produced(0)
        reducer.synchronize()

    return reduce


def _peers(ranks: Ranks, kept: Tensor) -> dict[str, Callable[[Tensor], None]]:
    """What one writes by hand; `kept` is memory for a result, made once."""
    comm, mpi4py = ranks.comm, ranks.mpi

    def out_of_place(p: Tensor) -> None:
        comm.Allreduce(_grad(p).numpy(), kept.numpy(), mpi4py.SUM)
        p.grad = kept

    def in_place(p: Tensor) -> None:
        comm.Allreduce(mpi4py.IN_PLACE, _grad(p).numpy(), mpi4py.SUM)

    def gloo(p: Tensor) -> None:
        dist.all_reduce(_grad(p))

    return {"MPI_Allreduce": out_of_place, "MPI_Allreduce in place": in_place, "gloo": gloo}


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


class _Turns:
    """The turns of one contestant with one parameter."""

    def __init__(self, name: str, parameter: Tensor, mine: Tensor, expected: Tensor) -> None:
        self._name = name
        self._parameter = parameter
        self._mine = mine
        self._expected = expected

    def of(self, reduce: Callable[[Tensor], None]) -> Contestant:
        return Contestant(
            name=self._name,
            prepare=self._make_gradient,
            stages=[("", lambda: reduce(self._parameter)), (_READ, self._read)],
            check=self._check,
            tidy=self._drop_gradient,
        )

    def _make_gradient(self) -> None:
        self._parameter.grad = torch.empty_like(self._parameter).copy_(self._mine)

    def _read(self) -> None:
        torch.sum(_grad(self._parameter))

    def _check(self) -> None:
        torch.testing.assert_close(_grad(self._parameter), self._expected)

    def _drop_gradient(self) -> None:
        self._parameter.grad = None


def _in_window(ranks: Ranks, mib: int, budget_s: float) -> Case:
    """The reduction alone: arrays and results stay where they are from turn to turn."""
    source = (_values(mib) * (ranks.rank + 1)).numpy()
    total = np.empty_like(source)
    transport = mpi.world()
    two_level = TwoLevel(transport, [source.nbytes], range(ranks.size))
    shared = two_level.kind == "direct"
    window = ResultWindow(two_level.node, [source.nbytes]) if shared else None
    result = np.empty_like(source) if window is None else window.shared(0).view(source.dtype)
    sequence = 0

    def ours() -> None:
        nonlocal sequence
        sequence += 1
        two_level.post(0, sequence, source, result)
        two_level.finish(0, sequence, source, result, Reduction("sum"), "bench", shared=shared)
        two_level.released(sequence, "bench", 1)

    def check() -> None:
        np.testing.assert_allclose(result, _expected(_values(mib), ranks.size)[0].numpy(), rtol=1e-5)

    contestants = [
        Contestant(name="farandole", stages=[("", ours)], check=check),
        Contestant(
            name="MPI_Allreduce",
            stages=[("", lambda: ranks.comm.Allreduce(source, total, ranks.mpi.SUM))],
        ),
    ]
    samples = contest(ranks, contestants, budget_s=budget_s)
    two_level.free()
    transport.free()
    if window is not None:
        window.close()
    notes = {"mib": mib, "kind": "in the window", "exchange": two_level.kind}
    return Case(what=f"in the window {mib} MiB", samples=samples, notes=notes)
