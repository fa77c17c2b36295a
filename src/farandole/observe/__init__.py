"""What happened in a run: the timeline of every rank, and energy. Knows nothing of MPI or of any framework.

    with farandole.observe.energy("train") as used:
        ...
    print(used)
"""

from farandole.observe.power.session import energy, energy_of_node, forget_energy, measure_idle, recording

__all__ = ["energy", "energy_of_node", "forget_energy", "measure_idle", "recording"]
