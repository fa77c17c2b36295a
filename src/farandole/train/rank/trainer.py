"""A model that is trained on this rank: what a run asks of it, whichever framework it is of.

`train.keras.trainer` and `train.torch.trainer` are the implementations. Metrics and averages are over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from farandole.train.rank.batches import EvaluationBatches, TrainingBatches

if TYPE_CHECKING:
    from farandole.train.plan import Plan
    from farandole.train.rank.checkpointing import RunCheckpoints
    from farandole.train.rank.hooks import Hook
    from farandole.train.rank.memory_estimate import LayerShape
    from farandole.train.settings import RunSettings
    from farandole.workloads.samples import TrainingData

__all__ = ["Trainer", "layer_shapes", "make_trainer"]


class Trainer(Protocol):
    """Made on every rank, with the same weights or not: `broadcast` makes them the same."""

    rate: float
    """The optimizer's, as it is now; may be set."""
    parameters: int
    """How many numbers the model consists of."""

    def layers(self, data: TrainingData) -> list[LayerShape] | None:
        """With what flows through them, where `layer_shapes` did not know it."""

    def broadcast(self) -> None:
        """Give every rank the first one's weights. Collective."""

    def fit(
        self, batches: TrainingBatches, hooks: Sequence[Hook], checkpoints: RunCheckpoints | None, after: Sequence[Hook], first: int
    ) -> None:
        """Train from epoch `first`. Hooks are called in their order; those of `after` once a checkpoint is saved."""

    def stop(self) -> None:
        """End training with this epoch. Every rank calls it."""

    def leave(self) -> None:
        """Tell the ranks that go on that this one will not."""

    def metrics(self) -> dict[str, float]:
        """Of the epoch so far. Collective."""

    def evaluate(self, batches: EvaluationBatches) -> dict[str, float]:
        """Loss and metrics over samples of which every rank has a share. Collective."""

    def checkpointer(self, folder: Path, **options: Any) -> Any:
        """A Checkpointer of this framework's door, for model and optimizer."""

    def communication(self) -> Mapping[str, float]:
        """Of gradients, since training began."""

    def weights(self) -> Sequence[Any]:
        """Arrays that are the same on all ranks."""

    def save(self, path: Path) -> None: ...


def make_trainer(settings: RunSettings, plan: Plan, data: TrainingData, *, rank: int, size: int) -> Trainer:
    """Builds the network, and the optimizer that works with all ranks. Collective."""
    if settings.api == "keras":
        from farandole.train.rank.keras.trainer import KerasTrainer

        return KerasTrainer(settings, plan, data, rank=rank, size=size)
    from farandole.train.rank.torch.trainer import TorchTrainer

    return TorchTrainer(settings, plan, data, rank=rank)


def layer_shapes(settings: RunSettings, data: TrainingData) -> list[LayerShape]:
    """The layers of the workload's model, found without memory for weights; of a torch module the weights alone."""
    if settings.api == "keras":
        from farandole.train.rank.keras.layer_shapes import layer_shapes as of_keras

        model = settings.workload.keras
        assert model is not None
        return of_keras(lambda: model.build(settings.parameters, data))
    from farandole.train.rank.torch.layer_shapes import weight_shapes

    return weight_shapes(settings, data)
