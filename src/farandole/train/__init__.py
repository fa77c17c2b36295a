"""The run: a workload from its files to a trained and judged model, on any number of ranks.

`command` reads options, `preparing` refuses what cannot work, `launching` starts ranks; `rank/` is what happens on each of them.
"""

from farandole.train.settings import RunSettings

__all__ = ["RunSettings"]
