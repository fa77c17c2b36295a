"""torch without its compiler, until something is compiled.

Every process that makes a torch optimizer imports torch's compiler, only to keep it away from some of the optimizer's
functions. That takes nearly as long as torch itself, and most tests compile nothing.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["delay"]

NAME = "torch._dynamo"


class Delayed(ModuleType):
    """Stands for the compiler in the optimizers' functions, and makes way for it at any other use."""

    def graph_break(self) -> None:
        pass

    def disable(self, function: Callable[..., Any] | None = None, *args: Any, wrapping: bool = True, **options: Any) -> Any:
        """torch's own functions pass `wrapping=False`."""
        return arrived().disable(function, *args, **options) if wrapping else function

    def __getattr__(self, name: str) -> Any:
        # Dunders: the import itself looks for some, and whoever looks at all modules. A submodule's import wants a path.
        if name.startswith("__") and not (name == "__path__" and "imported" in self.__dict__):
            raise AttributeError(name)
        return getattr(arrived(), name)


class Delay(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(NAME, self) if fullname == NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Delayed(NAME)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["imported"] = True


def delay() -> None:
    """From now on `import torch._dynamo` takes no time."""
    sys.meta_path.insert(0, Delay())


def arrived() -> ModuleType:
    """The compiler itself."""
    if isinstance(sys.modules.get(NAME), Delayed):
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Delay)]
        del sys.modules[NAME]
    return importlib.import_module(NAME)
