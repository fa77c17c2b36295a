"""What optimizers and tapes of all doors have in common: who takes part, how gradients are combined, opening a plan."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.comm.bytes import mpi
from farandole.comm.bytes.transport import LocalTransport
from farandole.comm.current import current
from farandole.comm.gradients.agreement import making
from farandole.comm.gradients.plan import BUCKET_BYTES, Entry, GradientPlan
from farandole.comm.gradients.team import Team, threads_allowed
from farandole.comm.named.process_sets import ProcessSet, SetRuntime
from farandole.comm.node.arithmetic import Op, Reduction
from farandole.errors import SettingsError

__all__ = ["open_plan", "reduction", "taking_part"]


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
    *,
    agreed: Sequence[Entry],
    how: Reduction,
    wire: str | None,
    staged: bool,
    team: Team,
    in_place: bool = False,
    more: str,
) -> GradientPlan:
    """A plan for `entries`, once the ranks have the same in `agreed` and in all settings. Collective.

    It is retired soon after its `owner` is gone. `name`: the plan's, alike on all ranks. `more`: further settings, in words.
    """
    bucket_bytes = min(BUCKET_BYTES, current().fusion_bytes)
    op = "Sum" if how.divide == 1 else "Average"
    way = f"{label} with op={op}, compression={wire}, buckets of {bucket_bytes} bytes, {more}"
    threads = threads_allowed(team.threads, mpi.thread_level())
    with making(process_set, name, way, agreed):
        plan = GradientPlan(
            process_set.runtime(),
            f"{label}.{name.removeprefix('plan.')}",
            entries,
            how=how,
            staged=staged,
            team=Team(threads=threads, stats_every=team.stats_every),
            bucket_bytes=bucket_bytes,
            in_place=in_place,
        )
    current().add_plan(plan, owner)
    return plan
