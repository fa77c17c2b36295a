"""One rank of `farandole run`: python -m farandole.train SETTINGS, which are those of RunSettings.from_flat as JSON."""

import time

_BEGAN = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402

from farandole.train.rank.running import run_as_rank  # noqa: E402

if __name__ == "__main__":
    sys.exit(run_as_rank(json.loads(sys.argv[1]), began=_BEGAN, stream=sys.stdout, prepared=True))
