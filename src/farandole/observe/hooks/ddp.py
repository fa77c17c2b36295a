"""DistributedDataParallel: its gradients are exchanged by C++ within backward, which keeps the times of every step.

Those are read when backward has ended. A communication hook would see every bucket, but a script may have one of its
own, and DDP takes only one.
"""

from __future__ import annotations

import time
import weakref
from typing import Any

from farandole.observe.hooks.training import TRAINING, Training

__all__ = ["Exchanges"]

_TRACK = "communication"
_EVERY_STEP = 1


class Exchanges:
    """What DDP says of its last step, as spans."""

    def __init__(self, torch: Any, training: Training) -> None:
        self._training = training
        self._kind = torch.nn.parallel.DistributedDataParallel
        self._model: weakref.ref[Any] | None = None
        self._told_ns = 0

    def seen(self, model: Any) -> None:
        """A model has made a forward pass."""
        if isinstance(model, self._kind) and (self._model is None or self._model() is not model):
            self._model = weakref.ref(model)
            model._set_ddp_runtime_logging_sample_rate(_EVERY_STEP)

    def tell(self) -> None:
        """After a backward pass."""
        model = None if self._model is None else self._model()
        if model is None or model.logger is None or not model.require_backward_grad_sync or not self._training.recording():
            return
        model.logger.set_runtime_stats_and_log()
        found = model._get_ddp_logging_data()
        # DDP reads the calendar's clock.
        ahead_ns = time.time_ns() - time.monotonic_ns()
        began_ns, ended_ns, computed_ns = (
            found.get(name, 0) - ahead_ns
            for name in ("backward_comm_time_start", "backward_comm_time_end", "backward_compute_time_end")
        )
        if self._told_ns < began_ns <= ended_ns:
            self._told_ns = ended_ns
            self._spans(began_ns, ended_ns, max(computed_ns, began_ns))

    def _spans(self, began_ns: int, ended_ns: int, computed_ns: int) -> None:
        step = {"step": self._training.steps}
        self._training.sink.span(_TRACK, "ALLREDUCE", began_ns, ended_ns, step)
        if computed_ns < ended_ns:
            self._training.sink.span(TRAINING, "WAIT_FOR_GRADIENTS", computed_ns, ended_ns, step)
