"""The run: a workload from its files to a trained and judged model, on any number of ranks.

Launcher side: `command` reads options, `launching` starts ranks. Rank side: `running`, `session`, a `trainer` for each framework.
"""

from farandole.train.settings import RunSettings

__all__ = ["RunSettings"]
