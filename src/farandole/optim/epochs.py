"""How the CANDLE papers divide epochs among ranks."""

from __future__ import annotations

from farandole.errors import SettingsError

__all__ = ["comp_epochs", "equal_epochs"]


def comp_epochs(n: int, myrank: int = 0, nprocs: int = 1) -> int:
    """As published: n // nprocs epochs each, and the remainder to the last rank as well.

    Ranks that average gradients in every step cannot have different numbers of epochs: see `equal_epochs`.
    """
    return n // nprocs + (n % nprocs if myrank == nprocs - 1 else 0)


def equal_epochs(n: int, nprocs: int) -> int:
    """The epochs of every rank; an error where they would differ, or be none."""
    if nprocs < 1:
        raise SettingsError(f"nprocs={nprocs}: must be 1 or more")
    if n < nprocs or n % nprocs:
        below, above = max(n // nprocs, 1) * nprocs, -(-n // nprocs) * nprocs
        choices = " or ".join(str(epochs) for epochs in sorted({below, above}))
        raise SettingsError(
            f"{n} epochs do not divide over {nprocs} ranks ({n} % {nprocs} = {n % nprocs}): ranks with fewer would "
            f"leave the others waiting. Use {choices}."
        )
    return n // nprocs
