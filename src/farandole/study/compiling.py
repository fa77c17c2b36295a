"""How long the first reading ever waits for the compiler: in a process and a folder that have seen none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from farandole.study.nursery import warm

__all__ = ["compile_seconds"]

_LIMIT_S = 300.0


def compile_seconds() -> float:
    """Paid once for each installation: numba keeps what it has compiled."""
    with tempfile.TemporaryDirectory(prefix="farandole-study-") as folder:
        words = [sys.executable, "-m", "farandole.study.compiling"]
        told = subprocess.run(
            words, env=os.environ | {"NUMBA_CACHE_DIR": folder}, stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S
        )
    return float(json.loads(told.stdout))


def main() -> None:
    import numba  # noqa: F401  (importing is not compiling)

    began = time.perf_counter()
    warm("fast")
    compiled = time.perf_counter()
    warm("fast")
    print(json.dumps(2 * compiled - began - time.perf_counter()))


if __name__ == "__main__":
    main()
