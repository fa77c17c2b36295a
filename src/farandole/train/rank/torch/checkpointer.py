"""Checkpoints of a training by our own loop: it goes on in the middle of an epoch, with the sums of its metrics so far."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import farandole.torch as hvd
from farandole.comm.world import size
from farandole.errors import SettingsError

__all__ = ["LoopCheckpointer"]

_VALIDATION = "val_"


class LoopCheckpointer(hvd.checkpoint.Checkpointer):
    """What `states` has, alike on all ranks; `sums` are of each rank. A step is one of the optimizer."""

    passing = False
    """No batch is let pass: the loop begins where the checkpoint was saved."""

    def __init__(self, folder: Path, states: Mapping[str, Any], sums: Any, *, keep: Any, own: Mapping[str, Any], **parts: Any) -> None:
        self._metric = keep.metric
        self._sums = sums
        super().__init__(folder, keep=keep, own={**own, "sums": sums}, **states, **parts)

    def restore(self) -> int:  # type: ignore[override]
        """The epoch to begin with. Collective."""
        manifest = super().restore()
        if manifest is None:
            return 0
        if self.progress.step_in_epoch and manifest.ranks != size():
            self.say(f"epoch {self.progress.epoch + 1} begins again: other ranks have other batches")
            self.progress.step_in_epoch = 0
        return self.progress.epoch

    def end_epoch(self, metrics: Mapping[str, float] | None = None, *, due: bool = False) -> None:
        found = metrics or {}
        if self._metric and self._metric not in found:
            raise SettingsError(f"checkpoint_best={self._metric!r}: an epoch of this run has {', '.join(found)}")
        super().end_epoch(found, due=due or self._metric.startswith(_VALIDATION))  # only the end of an epoch knows what validation shows
