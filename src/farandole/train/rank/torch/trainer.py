"""A plain torch module, or several, trained by our own loop over `farandole.torch`.

Random numbers of a batch (dropout) follow from the seed, the epoch, the step and the rank the batch is of, and from nothing
else: a resumed epoch and emulated ranks draw what an undisturbed training on real ranks draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import farandole.torch as hvd
from farandole.comm.named.collectives import Average, Sum, allreduce
from farandole.errors import SettingsError
from farandole.train.plan import Plan
from farandole.train.rank.batches import EvaluationBatches, TrainingBatches, batch_length
from farandole.train.rank.checkpointing import RunCheckpoints
from farandole.train.rank.hooks import Hook
from farandole.train.rank.memory_estimate import LayerShape
from farandole.train.rank.torch.checkpointer import LoopCheckpointer
from farandole.train.rank.torch.layer_shapes import called_layers
from farandole.train.settings import RunSettings
from farandole.workloads.samples import Stream, TrainingData
from farandole.workloads.torch_batch import TorchBatch
from farandole.workloads.workload import TorchModel

__all__ = ["TorchTrainer"]

_OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
}
_ONLY = "model"
"""What the module is called where there is one."""


class TorchTrainer:
    """Modules with a distributed optimizer each, and the loop that trains them."""

    def __init__(self, settings: RunSettings, plan: Plan, data: TrainingData, *, rank: int) -> None:
        known, parameters = settings.workload.torch, settings.parameters
        assert known is not None
        self._known, self._parameters, self._plan, self._rank = known, parameters, plan, rank
        torch.manual_seed(parameters.rng_seed)
        built = known.build(parameters, data)
        self.models: dict[str, torch.nn.Module] = dict(built) if isinstance(built, Mapping) else {_ONLY: built}
        _check_modules(settings, self.models, plan)
        plain = {name: _optimizer(known, parameters, module, plan.rate) for name, module in self.models.items()}
        self._first_rates = [group["lr"] for optimizer in plain.values() for group in optimizer.param_groups]
        self._optimizers = {
            name: hvd.DistributedOptimizer(optimizer, self._named(name), backward_passes_per_step=plan.passes)
            for name, optimizer in plain.items()
        }
        self._sums = Sums()
        self._stopped = False
        self.parameters = sum(p.numel() for module in self.models.values() for p in module.parameters())

    def _named(self, model: str) -> list[tuple[str, torch.nn.Parameter]]:
        prefix = "" if len(self.models) == 1 else f"{model}."
        return [(prefix + name, parameter) for name, parameter in self.models[model].named_parameters() if parameter.requires_grad]

    @property
    def rate(self) -> float:
        """Of the first optimizer's first group; others keep their ratio to it."""
        return float(self._groups()[0]["lr"])

    @rate.setter
    def rate(self, rate: float) -> None:
        for group, first in zip(self._groups(), self._first_rates):
            group["lr"] = rate * first / self._first_rates[0]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers.values() for group in optimizer.param_groups]

    def layers(self, data: TrainingData) -> list[LayerShape] | None:
        if len(self.models) > 1 or isinstance(data.train, Stream):
            return None
        return called_layers(self.models[_ONLY], _tensors(data.train.batch(np.arange(1))[0]))

    def broadcast(self) -> None:
        for module in self.models.values():
            hvd.broadcast_parameters(module.state_dict(), root_rank=0)

    def fit(
        self, batches: TrainingBatches, hooks: Sequence[Hook], checkpoints: RunCheckpoints | None, after: Sequence[Hook], first: int
    ) -> None:
        checkpointer: LoopCheckpointer | None = None if checkpoints is None else checkpoints.checkpointer
        for epoch in range(first, self._plan.epochs):
            if self._stopped:
                break
            for hook in (*hooks, *after):
                hook.begin_epoch(epoch)
            self._train_epoch(epoch, batches, hooks, checkpointer)
            metrics: dict[str, float] = {}
            for hook in hooks:
                hook.end_epoch(epoch, metrics)
            if checkpointer is not None:
                checkpointer.end_epoch(metrics)
            for hook in after:
                hook.end_epoch(epoch, metrics)
        if checkpointer is not None:
            checkpointer.close()

    def _train_epoch(self, epoch: int, batches: TrainingBatches, hooks: Sequence[Hook], checkpointer: LoopCheckpointer | None) -> None:
        begun = 0 if checkpointer is None else checkpointer.progress.step_in_epoch
        if not begun:
            self._sums.clear()
        for module in self.models.values():
            module.train()
        for step in range(begun, self._plan.steps):
            for batch in range(step * self._plan.passes, (step + 1) * self._plan.passes):
                for hook in hooks:
                    hook.begin_batch(batch)
                loss = self._train_batch(epoch, batch, batches)
                for hook in hooks:
                    hook.end_batch(batch, loss)
            if checkpointer is not None:
                checkpointer.step(self._sums.means())

    def _train_batch(self, epoch: int, number: int, batches: TrainingBatches) -> float:
        trained_as, last = batches.trained_as(number), not (number + 1) % self._plan.passes
        _set_seed([self._parameters.rng_seed, epoch, number // self._plan.passes, trained_as])
        batch = self._batch(batches[number], epoch, ends_step=last)
        found = _trained(self._known, batch) if self._known.train_step is None else self._known.train_step(batch)
        return self._sums.add(found, batch.length, "train_step")

    def _batch(self, arrays: tuple[Any, Any], epoch: int, *, ends_step: bool) -> TorchBatch:
        inputs, targets = arrays
        return TorchBatch(
            inputs=_tensors(inputs), targets=_tensors(targets), models=self.models, optimizers=self._optimizers, parameters=self._parameters,
            epoch=epoch, length=batch_length(inputs), passes=self._plan.passes, ends_step=ends_step,
        )  # fmt: skip

    def stop(self) -> None:
        self._stopped = True

    def leave(self) -> None:
        """The others learn of it when this process ends."""

    def metrics(self) -> dict[str, float]:
        self._average_buffers()
        return self._sums.over_ranks()

    def evaluate(self, batches: EvaluationBatches) -> dict[str, float]:
        sums = Sums()
        for module in self.models.values():
            module.eval()
        with torch.no_grad():
            for arrays in batches:
                batch = self._batch(arrays, epoch=-1, ends_step=False)
                found = _evaluated(self._known, batch) if self._known.test_step is None else self._known.test_step(batch)
                sums.add(found, batch.length, "test_step")
        return sums.over_ranks()

    def _average_buffers(self) -> None:
        """What modules have gathered from this rank's batches alone, such as the means of a batch normalisation. Collective."""
        for model, module in self.models.items():
            for name, buffer in module.named_buffers():
                if buffer.is_floating_point():
                    hvd.allreduce_(buffer, op=Average, name=f"buffer.{model}.{name}")

    def checkpointer(self, folder: Path, **options: Any) -> LoopCheckpointer:
        states = {f"{kind} {name}": part for kind, parts in (("model", self.models), ("optimizer", self._optimizers)) for name, part in parts.items()}
        return LoopCheckpointer(folder, states, self._sums, **options)

    def communication(self) -> Mapping[str, float]:
        found = [optimizer.communication_statistics() for optimizer in self._optimizers.values()]  # type: ignore[attr-defined]
        return {name: sum(one[name] for one in found) for name in found[0]}

    def weights(self) -> Sequence[Any]:
        tensors = [t for module in self.models.values() for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
        return [tensor.detach().contiguous().view(-1).view(torch.uint8).numpy() for tensor in tensors]

    def save(self, path: Path) -> None:
        states = {name: module.state_dict() for name, module in self.models.items()}
        torch.save(states.get(_ONLY, states), path)


class Sums:
    """Loss and metrics of batches, added up over their samples; those of several ranks become one mean."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._samples = 0

    def clear(self) -> None:
        self._sums, self._samples = {}, 0

    def add(self, found: Mapping[str, Any], length: int, of: str) -> float:
        """Means over a batch of so many samples; its loss."""
        if "loss" not in found:
            raise SettingsError(f"{of} has returned {', '.join(found) or 'nothing'}: expected a dictionary with the loss, e.g. {{'loss': loss}}")
        for name, value in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value) * length
        self._samples += length
        return float(found["loss"])

    def means(self) -> dict[str, float]:
        return {name: value / self._samples for name, value in self._sums.items()}

    def over_ranks(self) -> dict[str, float]:
        """Collective. A rank without a batch does not know the names."""
        from farandole.comm.named.collectives import allgather_object

        names = max(allgather_object(list(self._sums)), key=len)
        packed = np.array([self._samples, *(self._sums.get(name, 0.0) for name in names)])
        samples, *sums = allreduce(packed, op=Sum, name="metrics").tolist()
        return {name: value / samples if samples else math.nan for name, value in zip(names, sums)}

    def state_dict(self) -> Any:
        return {"sums": self._sums, "samples": self._samples}

    def load_state_dict(self, state: Any) -> None:
        self._sums, self._samples = dict(state["sums"]), state["samples"]


def _check_modules(settings: RunSettings, models: Mapping[str, Any], plan: Plan) -> None:
    name = settings.workload.name
    for module in models.values():
        if not isinstance(module, torch.nn.Module):
            raise SettingsError(f"workload {name}: build() has returned {type(module).__name__}, expected a torch.nn.Module or a dictionary of some")
    if len(models) > 1 and settings.workload.torch and settings.workload.torch.train_step is None:
        raise SettingsError(f"workload {name}: build() has returned the modules {', '.join(models)}. Give TorchModel(train_step=..., test_step=...).")
    if len(models) > 1 and plan.passes > 1:
        raise SettingsError(f"workload {name}: the steps of several modules cannot be those of emulated ranks. Use as many real ranks.")


def _optimizer(known: TorchModel, parameters: Any, module: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    if known.optimizer is not None:
        made: torch.optim.Optimizer = known.optimizer(parameters, module, rate)
        return made
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if parameters.optimizer == "lars":
        from farandole.optim.lars_torch import LARS

        return LARS(trained, lr=rate)
    return _OPTIMIZERS[parameters.optimizer](trained, lr=rate)  # type: ignore[no-any-return]


def _trained(known: TorchModel, batch: TorchBatch) -> dict[str, Any]:
    outputs = batch.outputs()
    loss = _loss(known, outputs, batch)
    batch.step(_ONLY, loss)
    return {"loss": loss.detach(), **_metrics(known, outputs, batch)}


def _evaluated(known: TorchModel, batch: TorchBatch) -> dict[str, Any]:
    outputs = batch.outputs()
    return {"loss": _loss(known, outputs, batch), **_metrics(known, outputs, batch)}


def _loss(known: TorchModel, outputs: Any, batch: TorchBatch) -> torch.Tensor:
    assert known.loss is not None
    loss: torch.Tensor = known.loss(outputs, batch.targets)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise SettingsError(f"the loss function has returned {found}: expected one number, the mean over the samples of the batch")
    return loss


@torch.no_grad()
def _metrics(known: TorchModel, outputs: Any, batch: TorchBatch) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, function in known.metrics.items():
        values = function(outputs, batch.targets)
        if not isinstance(values, torch.Tensor) or not values.ndim or len(values) != batch.length:
            shape = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
            raise SettingsError(
                f"metric {name!r} has returned {shape} for a batch of {batch.length}: expected a value for each sample. What is "
                "no mean over samples cannot be told for several ranks."
            )
        found[name] = values.double().mean()
    return found


def _tensors(arrays: Any) -> Any:
    if isinstance(arrays, Mapping):
        return {name: _tensors(array) for name, array in arrays.items()}
    if isinstance(arrays, (tuple, list)):
        return tuple(map(_tensors, arrays))
    array = np.asarray(arrays)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _set_seed(numbers: list[int]) -> None:
    """torch.manual_seed() would also note it for every kind of device that is not there, with a stack trace each."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
