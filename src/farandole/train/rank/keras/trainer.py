"""A Keras model, trained by Keras' own fit()."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.comm.named.collectives import Average, Sum, allreduce
from farandole.errors import MismatchError, SettingsError, TrainingError
from farandole.train.plan import Plan
from farandole.train.rank.batches import Batch, EvaluationBatches, TrainingBatches
from farandole.train.rank.checkpointing import RunCheckpoints
from farandole.train.rank.hooks import Hook
from farandole.train.rank.keras.seeds import spread_seeds
from farandole.train.rank.keras.short_calls import shorten_calls
from farandole.train.rank.keras.torch_images import compute_images_in_place
from farandole.train.settings import RunSettings
from farandole.workloads.samples import TrainingData
from farandole.workloads.workload import KerasModel

__all__ = ["KerasTrainer"]

_OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "rmsprop": keras.optimizers.RMSprop,
    "adam": keras.optimizers.Adam,
    "adagrad": keras.optimizers.Adagrad,
    "adadelta": keras.optimizers.Adadelta,
    "adamax": keras.optimizers.Adamax,
    "nadam": keras.optimizers.Nadam,
}


class KerasTrainer:
    """Compiles the model with a distributed optimizer; metrics are those of all ranks."""

    def __init__(self, settings: RunSettings, plan: Plan, data: TrainingData, *, rank: int, size: int) -> None:
        known, parameters = settings.workload.keras, settings.parameters
        assert known is not None
        self._plan, self._rank, self._size = plan, rank, size
        # Keras draws the seeds of layers from here. Its own set_random_seed loads every framework that is installed.
        random.seed(parameters.rng_seed)
        self.model = known.build(parameters, data)
        if not isinstance(self.model, keras.Model):
            raise SettingsError(f"workload {settings.workload.name}: build() has returned {type(self.model).__name__}, expected a keras.Model")
        spread_seeds(self.model, rank, size)
        compute_images_in_place(self.model)
        _check_metrics(known.metrics(parameters, data), self.model, data)
        loss, metrics = _loss(known, parameters), known.metrics(parameters, data)
        self.model.compile(_optimizer(known, parameters, plan), loss, metrics=metrics)
        self.model.optimizer.build(self.model.trainable_variables)
        shorten_calls(self.model)
        self.parameters = int(self.model.count_params())

    @property
    def rate(self) -> float:
        return float(self.model.optimizer.learning_rate)

    @rate.setter
    def rate(self, rate: float) -> None:
        self._fetch_variables()
        self.model.optimizer.learning_rate = rate

    def _fetch_variables(self) -> None:
        """JAX's compiled steps keep them, the rate among them, until they are asked for."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()

    def layers(self, data: TrainingData) -> None:
        return None

    def broadcast(self) -> None:
        hvd.broadcast_global_variables(0, self.model)

    def fit(
        self, batches: TrainingBatches, hooks: Sequence[Hook], checkpoints: RunCheckpoints | None, after: Sequence[Hook], first: int
    ) -> None:
        saving = [] if checkpoints is None else [checkpoints.checkpointer]
        callbacks = [_Hooks(hooks), *saving, _Hooks(after)]
        try:
            self.model.fit(
                _KerasBatches(batches), epochs=self._plan.epochs, initial_epoch=first, shuffle=False, verbose=0, callbacks=callbacks
            )
        except MismatchError as error:  # all ranks have the same steps: one has left them
            raise TrainingError(
                f"[rank {self._rank}/{self._size}] another rank has left the training, as it does when its loss is no number: "
                f"its own message says why. {error}"
            ) from error

    def stop(self) -> None:
        self.model.stop_training = True

    def leave(self) -> None:
        """Take part in the others' next step as one that has ended: they raise, too, where they would wait for this rank."""
        self._fetch_variables()
        with contextlib.suppress(MismatchError):  # which says on this rank that they had not ended
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def metrics(self) -> dict[str, float]:
        self._average_statistics()
        return self._combined()

    def evaluate(self, batches: EvaluationBatches) -> dict[str, float]:
        self.model.reset_metrics()
        if batches.streamed or len(batches):
            self.model.evaluate(iter(batches) if batches.in_turn else _KerasBatches(batches), verbose=0)
        return self._combined()

    def _combined(self) -> dict[str, float]:
        """The model's metrics over what all ranks have seen since they were reset: their states are sums. Collective."""
        variables = self.model.metrics_variables
        arrays = [np.asarray(keras.ops.convert_to_numpy(v), np.float64) for v in variables]
        packed = np.concatenate([array.reshape(-1) for array in arrays])
        total = allreduce(packed, op=Sum, name="metrics")
        for variable, part in zip(variables, np.split(total, np.cumsum([array.size for array in arrays])[:-1])):
            variable.assign(part.reshape(variable.shape).astype(variable.dtype))
        return {name: float(value) for name, value in self.model.get_metrics_result().items()}

    def _average_statistics(self) -> None:
        """What layers have gathered from this rank's batches alone, such as the means of a BatchNormalization. Collective."""
        if self._size == 1:
            return
        for number, variable in enumerate(_statistics(self.model)):
            mine = np.asarray(keras.ops.convert_to_numpy(variable))
            variable.assign(allreduce(mine, op=Average, name=f"statistics.{number}"))

    def checkpointer(self, folder: Path, **options: Any) -> Any:
        return hvd.checkpoint.Checkpointer(folder, self.model, **options)

    def communication(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self.model.optimizer.communication_statistics()
        return found

    def weights(self) -> Sequence[Any]:
        return [*(np.asarray(keras.ops.convert_to_numpy(v)) for v in (*self.model.trainable_variables, *_statistics(self.model)))]

    def save(self, path: Path) -> None:
        with _unused_tensorflow():
            self.model.save(path)


class _Hooks(keras.callbacks.Callback):
    """Hooks of a run, as a callback; what they find of an epoch goes into its logs."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        super().__init__()
        self._hooks = hooks

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        for hook in self._hooks:
            hook.begin_epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for hook in self._hooks:
            hook.begin_batch(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        for hook in self._hooks:
            hook.end_batch(batch, loss)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        found = {} if logs is None else logs
        for hook in self._hooks:
            hook.end_epoch(epoch, found)


class _KerasBatches(keras.utils.PyDataset):
    def __init__(self, batches: TrainingBatches | EvaluationBatches) -> None:
        super().__init__()
        self.at_hand = batches.at_hand
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]


def _optimizer(known: KerasModel, parameters: Any, plan: Plan) -> Any:
    """Gradients are averaged over all ranks it trains as, real and emulated."""
    plain = _class(parameters.optimizer)(learning_rate=plan.rate) if known.optimizer is None else known.optimizer(parameters, plan.rate)
    return hvd.DistributedOptimizer(plain, backward_passes_per_step=plan.passes, average_aggregated_gradients=True)


def _class(name: str) -> Any:
    if name == "lars":
        from farandole.optim.lars_keras import LARS

        return LARS
    return _OPTIMIZERS[name]


def _loss(known: KerasModel, parameters: Any) -> Any:
    given = parameters.loss if known.loss is None else known.loss
    given = getattr(given, "found", lambda: given)()  # itself, which a saved model can name
    try:
        return keras.losses.get(given)
    except ValueError:
        raise SettingsError(f"loss={given!r} is unknown. Use a Keras loss by name, e.g. mse.") from None


def _statistics(model: Any) -> list[Any]:
    """Numbers that steps change and gradients do not; states of random generators are whole numbers."""
    return [v for v in model.non_trainable_variables if keras.backend.standardize_dtype(v.dtype).startswith(("float", "bfloat"))]


def _check_metrics(metrics: Sequence[Any], model: Any, data: TrainingData) -> None:
    """Refuse a metric whose state is no sum over samples: those of several ranks could not be added up."""
    if len(model.outputs or ()) != 1 or not hasattr(data.validation, "batch"):
        return
    rows = np.arange(min(4, len(data.validation)))
    targets = data.validation.batch(rows)[1]
    shape = [length or 1 for length in model.outputs[0].shape[1:]]
    outputs = np.random.default_rng(0).random((len(rows), *shape), np.float32)
    halves = (slice(None, len(rows) // 2), slice(len(rows) // 2, None))
    for metric in metrics:

        def state_after(parts: Sequence[slice], metric: Any = metric) -> list[Any]:
            metric.reset_state()
            for part in parts:
                metric.update_state(targets[part], outputs[part])
            return [np.asarray(keras.ops.convert_to_numpy(v), np.float64) for v in metric.variables]

        if len(rows) > 1 and not _adds_up(state_after, halves):
            raise SettingsError(
                f"metric {metric.name!r}: its state is no sum over samples, so that those of several ranks cannot be added up. Use one "
                "that is a mean, such as keras.metrics.MeanMetricWrapper(function)."
            )


def _adds_up(state_after: Callable[[Sequence[slice]], list[Any]], halves: tuple[slice, slice]) -> bool:
    whole, begun = state_after(halves), state_after(())
    first, second = state_after(halves[:1]), state_after(halves[1:])
    return all(np.allclose(w + b, f + s, rtol=1e-3, equal_nan=True) for w, b, f, s in zip(whole, begun, first, second))


@contextlib.contextmanager
def _unused_tensorflow() -> Iterator[None]:
    """Where TensorFlow is installed and not in use, Keras loads it to save a model: seconds, and half a gigabyte."""
    if "tensorflow" in sys.modules:
        yield
        return
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["tensorflow"]
