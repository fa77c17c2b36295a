"""Tests on real ranks: start them, read what they say, and see that they leave nothing behind.

`rank_test` turns functions into tests that share one launch, the `ranks` fixture runs one function,
`run_ranks` runs a whole script. CONTRIBUTING.md shows each.
"""

from ranktest.folder import shared_folder
from ranktest.job import RanksFailed, RanksHang
from ranktest.marker import rank_test
from ranktest.scripts import RanksResult, run_ranks

__all__ = ["RanksFailed", "RanksHang", "RanksResult", "rank_test", "run_ranks", "shared_folder"]
