"""The data of the CANDLE Pilot1 benchmarks: NT3, P1B1, P1B2 and P1B3."""

from farandole.data.candle.files import (
    BENCHMARKS,
    PRESETS,
    Benchmark,
    Size,
    TableFile,
    benchmark,
    cell_name,
    find,
)

__all__ = ["BENCHMARKS", "PRESETS", "Benchmark", "Size", "TableFile", "benchmark", "cell_name", "find"]
