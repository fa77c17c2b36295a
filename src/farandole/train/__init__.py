"""Training runs: phases, steps, and the rules by which epochs, batches and rates follow the number of ranks."""

from farandole.train.settings import RunSettings

__all__ = ["RunSettings"]
