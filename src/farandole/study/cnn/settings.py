"""What `farandole bench cnn` is asked to measure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.errors import SettingsError
from farandole.train.settings import RunSettings
from farandole.workloads.cnn import NETS
from farandole.workloads.gpt2 import MODELS as TRANSFORMERS

__all__ = ["FORMATS", "FRAMEWORKS", "MODELS", "STYLES", "CnnSettings"]

FRAMEWORKS = {"torch": ("torch", "torch"), "keras-torch": ("keras", "torch"), "tensorflow": ("keras", "tensorflow"), "jax": ("keras", "jax")}
"""By name, what trains and what it computes with."""
STYLES = ("tf_cnn_benchmarks", "horovod")
FORMATS = {"NHWC": "channels_last", "NCHW": "channels_first"}
MODELS = (*NETS, *TRANSFORMERS)
_ALIASES = {"vgg11": "vgg_a", "googlenet": "inception_v1", "inception3": "inception_v3", "inception4": "inception_v4", "resnet50_v1.5": "resnet50"}
"""As tf_cnn_benchmarks calls them."""


@dataclass(kw_only=True, slots=True)
class CnnSettings:
    model: str = "resnet50"
    batch_size: int = 32
    """Of each rank."""
    num_batches: int = 100
    """Steps that are measured."""
    num_warmup_batches: int = 10
    """Steps before them."""
    display_every: int = 10
    """Steps from line to line; Horovod's measurements are as many steps each."""
    num_intra_threads: int = 0
    """Threads a rank computes one operation with; 0: its share of the cores."""
    num_inter_threads: int = 0
    """Operations at the same time; 0: as the framework chooses."""
    image_size: int = 0
    classes: int = 0
    framework: str = "torch"
    optimizer: str = "sgd"
    data_format: str = "NHWC"
    data_dir: str = ""
    """JPEG folders; empty: synthetic images, made once."""
    style: str = STYLES[0]
    json: str = ""
    """Where everything is written as well."""

    def __post_init__(self) -> None:
        self.model = _ALIASES.get(self.model, self.model)
        for name, known in (("model", MODELS), ("framework", FRAMEWORKS), ("style", STYLES), ("data_format", FORMATS)):
            if getattr(self, name) not in known:
                raise SettingsError(f"--{name} {getattr(self, name)}: use one of {', '.join(known)}")
        for name, least in (("batch_size", 1), ("num_batches", 1), ("num_warmup_batches", 0), ("display_every", 1), ("num_intra_threads", 0), ("num_inter_threads", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"--{name} {getattr(self, name)}: expected {least} or more")
        if self.model in TRANSFORMERS and self.framework != "torch":
            raise SettingsError(f"--framework {self.framework}: {self.model} is a plain torch module. Leave it out, or use torch.")
        if self.style == "horovod" and self.num_batches % self.display_every:
            raise SettingsError(f"--num_batches {self.num_batches} does not divide into measurements of {self.display_every} steps. Use a multiple.")
        self.run(1)  # which refuses what a workload does

    @property
    def steps(self) -> int:
        return self.num_warmup_batches + self.num_batches

    @property
    def samples(self) -> str:
        """What they are."""
        return "sequences" if self.model in TRANSFORMERS else "images"

    def run(self, ranks: int, *, steps: int = 0, epochs: int = 1) -> RunSettings:
        """The same as settings of `farandole run`, for epochs of so many steps; 0: for all in one."""
        api, framework = FRAMEWORKS[self.framework]
        given: dict[str, Any] = {
            "api": api, "framework": framework, "model": self.model, "batch_size": self.batch_size, "optimizer": self.optimizer,
            "threads": self.num_intra_threads, "epochs": epochs, "train_steps": steps or self.steps, "parallel": "steps", "lr_scaling": "none",
            self.samples: (steps or self.steps) * self.batch_size * ranks,
        }  # fmt: skip
        if self.model in TRANSFORMERS:
            return RunSettings.from_flat({"benchmark": "gpt2", "preset": "small", **given})
        given |= {"image_size": self.image_size, "classes": self.classes, "layout": FORMATS[self.data_format]}
        folder = {"data_dir": Path(self.data_dir)} if self.data_dir else {}
        return RunSettings.from_flat({"benchmark": "cnn", "preset": "imagenet", **given, **folder})

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
