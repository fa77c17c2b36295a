"""Hooks into frameworks: what a training script does, step by step, without a line of it changed.

    with recording on:      watch(timeline)     torch and Keras are hooked now, or as soon as they are imported
    with recording off:     unwatch()           and are as they were

The frameworks are handed in by whoever imports them: this package imports none.

    track      spans
    steps      FIT, EPOCH, STEP
    training   DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATE, WAIT_FOR_GRADIENTS and collectives that training waits for;
               with Keras also RUN (one call of its training function) and CALLBACKS
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from farandole.observe.hooks.training import Patches, Sink, Training

__all__ = ["Sink", "unwatch", "watch"]

_FRAMEWORKS = ("torch", "keras")
_log = logging.getLogger(__name__)


class _Watch:
    """Finds frameworks as they are imported; the last thing their import does is to be hooked."""

    def __init__(self, sink: Sink) -> None:
        self._patches = Patches()
        self._training = Training(sink)
        self._hooked: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _FRAMEWORKS or name in self._hooked:
            return None
        self._hooked.add(name)  # find_spec below comes here again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._hooked.discard(name)
        if spec is not None and spec.loader is not None:
            _afterwards(spec.loader, self.hook)
        return spec

    def hook(self, module: ModuleType) -> None:
        from farandole.observe.hooks import on_keras, on_torch

        if module.__name__ not in self._hooked and self is _watch:
            self._hooked.add(module.__name__)
            install = {"torch": on_torch.install, "keras": on_keras.install}[module.__name__]
            try:
                install(module, self._training, self._patches)
            except Exception as error:  # another version may lack what we look for: not the script's problem
                version = getattr(module, "__version__", "of an unknown version")
                _log.warning("%s %s cannot be observed: %s: %s", module.__name__, version, type(error).__name__, error)

    def undo(self) -> None:
        self._patches.undo()


def _afterwards(loader: Any, then: Callable[[ModuleType], None]) -> None:
    """Have `then` called when the module has been executed. The loader stays the one that it is."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        then(module)

    loader.exec_module = exec_module


_watch: _Watch | None = None


def watch(sink: Sink) -> None:
    """Hook frameworks that are there or come, and tell `sink` what they do."""
    global _watch
    unwatch()
    _watch = _Watch(sink)
    sys.meta_path.insert(0, _watch)
    for name in _FRAMEWORKS:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _watch.hook(module)


def unwatch() -> None:
    global _watch
    found, _watch = _watch, None
    if found is not None:
        sys.meta_path.remove(found)
        found.undo()
