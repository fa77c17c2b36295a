"""Python runs this before a script that `farandole observe` has started, and every Python it starts in turn.

It then runs the sitecustomize that would have been found without this one. A Python that has no farandole gets it from
here; one that is too old for it is left alone.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path


def _hidden() -> None:
    """Run what this module stands in front of."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    importlib.invalidate_caches()
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _provide() -> None:
    """farandole by its own path: no other package of the environment that has it becomes importable."""
    if importlib.util.find_spec("farandole") is not None:
        return
    folder = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "farandole", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is not None and spec.loader is not None:
        module = sys.modules["farandole"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if sys.version_info >= (3, 11) and os.environ.get("FARANDOLE_OBSERVE"):
    _provide()
    importlib.import_module("farandole.observe.observer").begin()
_hidden()
