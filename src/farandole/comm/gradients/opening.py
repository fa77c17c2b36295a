"""What optimizers and tapes of all doors have in common: who takes part, how gradients are combined, opening a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farandole.comm.bytes import mpi
from farandole.comm.bytes.transport import LocalTransport
from farandole.comm.current import current
from farandole.comm.gradients.agreement import making
from farandole.comm.gradients.host import HostPlan
from farandole.comm.gradients.interface import Entry, GradientPlan, PlanSettings
from farandole.comm.gradients.team import threads_allowed
from farandole.comm.named.process_sets import ProcessSet, SetRuntime
from farandole.comm.node.arithmetic import Op, Reduction
from farandole.errors import SettingsError

__all__ = ["make_plan", "open_plan", "reduction", "taking_part"]


def taking_part(process_set: ProcessSet) -> ProcessSet:
    """The set, or on a rank outside it one of this rank alone, in which gradients stay as they are."""
    if process_set.included() is not False:
        return process_set
    world = current()
    if not world.alone:
        runtime = SetRuntime(LocalTransport(), (world.rank,), "alone: ", world.fusion_bytes, 1, world.size)
        world.alone.append(ProcessSet([world.rank]))
        world.alone[0].attach(-1, [world.rank], world.rank, runtime)
    return world.alone[0]


def reduction(
    caller: str, op: Op | int, size: int, *, predivide: float = 1.0, multiply: float = 1.0, others: str = ""
) -> Reduction:
    """What `op` means for gradients; `others`: further ones that `caller` takes."""
    if op not in (Op.AVERAGE, Op.SUM):
        raise SettingsError(f"{caller}(op={Op(op).name}): use Average{',' if others else ' or'} Sum{others}")
    if predivide != 1.0 and op != Op.AVERAGE:
        raise SettingsError("gradient_predivide_factor needs op=Average")
    # Dividing before and multiplying after cancel out: sums are kept wide enough not to need it.
    return Reduction("sum", multiply, size if op == Op.AVERAGE else 1)


def open_plan(
    owner: object,
    process_set: ProcessSet,
    label: str,
    name: str,
    entries: Sequence[Entry],
    settings: PlanSettings,
    *,
    agreed: Sequence[Entry],
    more: str,
) -> GradientPlan:
    """A plan for `entries`, once the ranks have the same in `agreed` and in all settings. Collective.

    It is retired soon after its `owner` is gone. `name`: the plan's, alike on all ranks. `more`: further settings, in words.
    """
    bucket_bytes = min(settings.bucket_bytes, current().fusion_bytes)
    op = "Sum" if settings.how.divide == 1 else "Average"
    way = f"{label} with op={op}, compression={settings.wire}, buckets of {bucket_bytes} bytes, {more}"
    threads = threads_allowed(settings.team.threads, mpi.thread_level())
    allowed = replace(settings, bucket_bytes=bucket_bytes, team=replace(settings.team, threads=threads))
    with making(process_set, name, way, agreed):
        plan = make_plan(process_set.runtime(), f"{label}.{name.removeprefix('plan.')}", entries, allowed)
    current().add_plan(plan, owner)
    return plan


def make_plan(runtime: SetRuntime, label: str, entries: Sequence[Entry], settings: PlanSettings) -> GradientPlan:
    """The implementation that fits: the host's, which stages what is `elsewhere`. Collective: every rank of the set makes it.

    `entries` in the order in which backward makes them.
    """
    return HostPlan(runtime, label, entries, settings)
