"""GPT-2, the small one: 12 layers of 12 heads over 768 values, 1,024 tokens of 50,257 at a time; 124,439,808 parameters.

A plain torch module, on tokens made on the fly: every sample repeats a random phrase of its own, which a network learns to look back for.
Adam, cross-entropy of the next token.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.errors import SettingsError
from farandole.workloads.parameters import OPTIMIZERS, Parameters, option
from farandole.workloads.workload import TorchModel, Workload, deferred

__all__ = ["WORKLOAD", "Gpt2"]

MODELS = ("gpt2-small",)


@dataclass(kw_only=True, slots=True)
class Gpt2(Parameters):
    """GPT-2's hyper-parameters."""

    batch_size: int = option(4, "sequences a rank takes in a step")
    optimizer: str = option("adam", "which", OPTIMIZERS)
    learning_rate: float | None = option(3e-4, "of one rank alone; None: the optimizer's own")
    model: str = option("gpt2-small", "which network; the following change it", MODELS)
    layers: int = option(12, "blocks of attention and two dense layers")
    heads: int = option(12, "of attention")
    width: int = option(768, "values of a token")
    context: int = option(1024, "tokens of a sequence")
    vocabulary: int = option(50_257, "different tokens")
    dropout: float = option(0.0, "fraction of values dropped")
    sequences: int = option(40, "of an epoch")

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        self._at_least(1, "layers", "heads", "width", "sequences")
        self._at_least(2, "context", "vocabulary")
        if self.width % self.heads:
            raise SettingsError(f"width={self.width} does not divide over heads={self.heads} ({self.width} % {self.heads} = {self.width % self.heads})")
        if not 0 <= self.dropout < 1:
            raise SettingsError(f"dropout={self.dropout}: expected a fraction from 0 to below 1, e.g. 0.1")


WORKLOAD = Workload(
    name="gpt2",
    title="the next token: GPT-2 small, a transformer of 124 M parameters, on tokens made on the fly",
    parameters=Gpt2,
    presets={
        "tiny": {"layers": 2, "heads": 2, "width": 32, "context": 64, "vocabulary": 128, "sequences": 320, "batch_size": 16, "learning_rate": 0.003},
        "small": {},
    },
    load=deferred("farandole.workloads.gpt2.data:load"),
    folder_optional=True,
    torch=TorchModel(build=deferred("farandole.workloads.gpt2.model:build"), loss=deferred("farandole.workloads.gpt2.model:loss")),
)  # fmt: skip
