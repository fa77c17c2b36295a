"""State to disk and back, whatever happens in between. Knows no framework; docs/checkpoints.md.

    with Checkpointer("run1", {"model": model}, when=When(seconds=600)) as checkpointer:
        checkpointer.restore()
        while checkpointer.progress.step < 1000:
            ...
            checkpointer.step()

`farandole.torch.checkpoint` takes models and optimizers as they are.
"""

from farandole.checkpoint.checkpointer import Checkpointer
from farandole.checkpoint.folder import Loaded
from farandole.checkpoint.generators import NumpyGenerator
from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.parts import Part, Progress
from farandole.checkpoint.reading import read
from farandole.checkpoint.timing import When

__all__ = ["Checkpointer", "Keep", "Loaded", "Manifest", "NumpyGenerator", "Part", "Progress", "When", "read"]
