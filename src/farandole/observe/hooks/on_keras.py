"""Keras 3: fit() on any backend, seen from its callbacks, and what is inside a step on torch.

    DATA        the next batch is fetched: on torch from the end of one step's callbacks to the begin of the next one's, on
                JAX within RUN; TensorFlow's graph does it unseen
    CALLBACKS   all callbacks together
    RUN         the training function. TensorFlow and JAX compile it: forward, backward and optimizer are one span. On
                torch they are spans within it
    FIT         says which of them are unseen

JAX returns before it has computed. Where callbacks look at every step's metrics, as most do, Keras waits for them before
it calls them, and that wait is made a part of RUN.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from farandole.observe.hooks.training import STEPS, Patches, Training

__all__ = ["install"]

_COMPILED = ("FORWARD", "BACKWARD", "OPTIMIZER")
_UNSEEN: dict[str, tuple[str, ...]] = {"torch": (), "jax": _COMPILED, "tensorflow": ("DATA", *_COMPILED)}

def install(keras: Any, training: Training, patches: Patches) -> None:
    fit = _Fit(training)
    backend = keras.backend.backend()
    around: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
        "on_train_begin": (_nothing, _nothing),
        "on_epoch_begin": (fit.epoch_begins, fit.fetches),
        "on_train_batch_begin": (fit.has_fetched if backend == "torch" else _nothing, fit.runs),
        "on_train_batch_end": (fit.waits_for_jax if backend == "jax" else fit.has_run, fit.step_ends),
        "on_test_begin": (fit.evaluates, _nothing),
        "on_test_end": (_nothing, fit.has_evaluated),
        "on_epoch_end": (_nothing, fit.epoch_ends),
        "on_train_end": (_nothing, _nothing),
    }
    unseen = {"backend": backend, "unseen": list(_UNSEEN.get(backend, _COMPILED))}
    patches.replace(keras.Model, "fit", functools.partial(_whole, training, fit, unseen))
    for name, (before, after) in around.items():
        patches.replace(keras.callbacks.CallbackList, name, functools.partial(_callbacks, training, before, after))
    if backend == "jax":
        batches = sys.modules["keras.src.backend.jax.trainer"].JAXEpochIterator
        patches.replace(batches, "_get_iterator", functools.partial(_fetching, training, fit))
    training.layers_of_keras = (keras.layers.Layer,)
    if backend == "torch":
        patches.replace(keras.layers.Layer, "__call__", functools.partial(_forward, training, fit))
        patches.replace(keras.optimizers.Optimizer, "apply", functools.partial(training.timed, "OPTIMIZER"))


def _callbacks(
    training: Training, before: Callable[..., None], after: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not training.recording():
            return original(self, *args, **kwargs)
        before(self, time.monotonic_ns(), *args)
        start_ns = time.monotonic_ns()
        result = original(self, *args, **kwargs)
        end_ns = time.monotonic_ns()
        training.span("CALLBACKS", start_ns, end_ns)
        after(self, end_ns, *args)
        return result

    return call


def _nothing(*_: Any) -> None:
    return


def _whole(
    training: Training, fit: _Fit, told: Mapping[str, object], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not training.recording() or training.in_fit:
            return original(self, *args, **kwargs)
        fit.begins()
        start_ns = time.monotonic_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            fit.running = False
            training.fit_ended()
            training.sink.span(STEPS, "FIT", start_ns, time.monotonic_ns(), told)

    return call


def _fetching(training: Training, fit: _Fit, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _get_iterator(self: Any) -> Iterator[Any]:
        return _fetched(training, fit, iter(original(self)))

    return _get_iterator


def _fetched(training: Training, fit: _Fit, batches: Iterator[Any]) -> Iterator[Any]:
    start_ns = time.monotonic_ns()
    for batch in batches:
        if fit.running and training.recording():
            training.span("DATA", start_ns, time.monotonic_ns())
        yield batch
        start_ns = time.monotonic_ns()


def _forward(training: Training, fit: _Fit, original: Callable[..., Any]) -> Callable[..., Any]:
    compiling = sys.modules["torch"].compiler.is_compiling

    def told(start_ns: int) -> None:
        training.span("FORWARD", start_ns, time.monotonic_ns())

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or training.inside or not fit.running or not training.recording():
            return original(self, *args, **kwargs)
        return training.outermost(told, original, self, *args, **kwargs)

    return __call__


class _Fit:
    """Where fit() is. Every method gets the callbacks and the time."""

    def __init__(self, training: Training) -> None:
        self.running = False
        """Whether the training function is being called, in the thread that records."""
        self._training = training
        self._epoch_ns = self._step_ns = self._run_ns = self._evaluation_ns = 0

    def begins(self) -> None:
        self._epoch_ns = self._step_ns = self._run_ns = self._evaluation_ns = 0
        self.running, self._training.in_fit = False, True

    def epoch_begins(self, _: Any, now_ns: int, *args: Any) -> None:
        self._epoch_ns = now_ns

    def fetches(self, _: Any, now_ns: int, *args: Any) -> None:
        self._step_ns = now_ns

    def has_fetched(self, _: Any, now_ns: int, *args: Any) -> None:
        if self._step_ns:
            self._training.span("DATA", self._step_ns, now_ns)

    def runs(self, _: Any, now_ns: int, *args: Any) -> None:
        self._run_ns = now_ns
        self.running = True

    def has_run(self, _: Any, now_ns: int, *args: Any) -> None:
        self.running = False
        if self._run_ns:
            self._training.span("RUN", self._run_ns, now_ns)

    def waits_for_jax(self, callbacks: Any, now_ns: int, batch: int, logs: Any = None, *args: Any) -> None:
        if not getattr(callbacks, "_async_train", False) and logs is not None:
            sys.modules["jax"].block_until_ready(logs)
            now_ns = time.monotonic_ns()
        self.has_run(callbacks, now_ns)

    def step_ends(self, _: Any, now_ns: int, *args: Any) -> None:
        if self._step_ns:
            self._training.step(self._step_ns, now_ns)
        self._step_ns = now_ns

    def evaluates(self, _: Any, now_ns: int, *args: Any) -> None:
        self._evaluation_ns = now_ns

    def has_evaluated(self, _: Any, now_ns: int, *args: Any) -> None:
        if self._evaluation_ns:
            self._training.span("EVALUATE", self._evaluation_ns, now_ns)

    def epoch_ends(self, _: Any, now_ns: int, epoch: int = 0, *args: Any) -> None:
        if self._epoch_ns:
            self._training.sink.span(STEPS, "EPOCH", self._epoch_ns, now_ns, {"epoch": epoch})
