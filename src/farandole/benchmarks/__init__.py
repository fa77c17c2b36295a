"""CANDLE's Pilot1 benchmarks: arrays to model, loss and metrics. Each is one module that reads like its paper.

from farandole.benchmarks import benchmark
nt3 = benchmark("nt3")
model = nt3.build(nt3.parameters(), nt3.load(folder, nt3.parameters()))
"""

from __future__ import annotations

import importlib
from typing import cast

from farandole.benchmarks.benchmark import Benchmark
from farandole.errors import SettingsError

__all__ = ["NAMES", "Benchmark", "benchmark"]

NAMES = ("nt3", "p1b1", "p1b2", "p1b3")


def benchmark(name: str) -> Benchmark:
    if name not in NAMES:
        raise SettingsError(f"no benchmark is called {name!r}. Use one of {', '.join(NAMES)}.")
    return cast(Benchmark, importlib.import_module(f"farandole.benchmarks.{name}").BENCHMARK)
