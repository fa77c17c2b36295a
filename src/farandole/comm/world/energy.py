"""The energy of all nodes of a job."""

from __future__ import annotations

from farandole.comm.named.collectives import allgather_object
from farandole.observe.power.nodes import JobEnergy, combine
from farandole.observe.power.session import energy_of_node

__all__ = ["job_energy"]


def job_energy() -> JobEnergy:
    """What the regions marked with `observe.energy` took, by node and in total. Collective: every rank calls it."""
    return combine(allgather_object(energy_of_node()))
