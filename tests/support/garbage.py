"""Less of Python's garbage collection, which takes a fifth of the time of a process that imports a framework.

Importing one makes some hundred thousand objects that stay: they are looked at again and again meanwhile, and
several times more when the interpreter ends.
"""

import atexit
import gc

__all__ = ["collect_less"]

NEW_OBJECTS = 50_000


def collect_less() -> None:
    """From now on collect seldom, and nothing at the end but what goes by its count."""
    gc.set_threshold(NEW_OBJECTS)
    atexit.register(gc.freeze)
