"""State to disk and back, whatever happens in between. Knows no framework; docs/checkpoints.md.

    with Checkpointer("run1", {"model": model}, when=When(seconds=600)) as checkpointer:
        checkpointer.restore()
        while checkpointer.progress.step < 1000:
            ...
            checkpointer.step()

`farandole.torch.checkpoint` takes models and optimizers as they are.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.checkpoint.checkpointer import Checkpointer
    from farandole.checkpoint.generators import NumpyGenerator
    from farandole.checkpoint.keeping import Keep
    from farandole.checkpoint.manifest import Manifest
    from farandole.checkpoint.parts import Part, Progress
    from farandole.checkpoint.reading import read
    from farandole.checkpoint.timing import When

__all__ = ["Checkpointer", "Keep", "Manifest", "NumpyGenerator", "Part", "Progress", "When", "read"]

_HOME = {
    "Checkpointer": "checkpointer",
    "Keep": "keeping",
    "Manifest": "manifest",
    "NumpyGenerator": "generators",
    "Part": "parts",
    "Progress": "parts",
    "When": "timing",
    "read": "reading",
}


def __getattr__(name: str) -> Any:
    """Loaded when first used: the command line needs none of them."""
    if name not in _HOME:
        raise AttributeError(f"module 'farandole.checkpoint' has no attribute {name!r}")
    return getattr(import_module(f"farandole.checkpoint.{_HOME[name]}"), name)
