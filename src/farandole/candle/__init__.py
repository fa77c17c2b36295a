"""The benchmarks for programs that search hyper-parameters: `from farandole.candle import nt3`."""

from farandole.candle import nt3, p1b1, p1b2, p1b3

__all__ = ["nt3", "p1b1", "p1b2", "p1b3"]
