"""Synthetic files in the layouts of tables, with structure that a network can learn.

    from farandole.data.make import make, verify
    from farandole.workloads.nt3 import FILES
    make(FILES, "data", preset="demo")
    verify("data")
"""

from farandole.data.make.manifest import Manifest, verify
from farandole.data.make.sets import make

__all__ = ["Manifest", "make", "verify"]
