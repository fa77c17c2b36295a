"""What happened in a run: the timeline of every rank, and energy. Knows nothing of MPI or of any framework.

    with farandole.observe.energy("train") as used:
        ...
    print(used)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.observe.power.session import energy, energy_of_node, forget_energy, measure_idle, recording

__all__ = ["energy", "energy_of_node", "forget_energy", "measure_idle", "recording"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: who only records a timeline needs no sensors."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.power.session"), name)
