"""Synthetic files in the layouts of the CANDLE Pilot1 benchmarks, with structure that a network can learn.

    from farandole.data.make import make, verify
    make("nt3", "data", preset="demo")
    verify("data")
"""

from farandole.data.make.manifest import Manifest, verify
from farandole.data.make.sets import make

__all__ = ["Manifest", "make", "verify"]
