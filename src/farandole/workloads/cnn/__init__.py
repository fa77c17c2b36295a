"""The CNNs that everybody compares on: ResNets, Inceptions, VGGs, AlexNet, and CIFAR's ResNets.

    resnet50, resnet101, resnet152         Keras' own (v1); on torch torchvision's layers and counts (v1.5)
    inception_v3, vgg16, vgg19             Keras' own; on torch ours, as torchvision counts them
    inception_v1, inception_v4, vgg_a, alexnet, resnet8, resnet20, resnet110, resnet1001     ours, one description for both

docs/cnn.md has their parameter counts and where these come from. Images are synthetic, made once, or JPEG files of `--data-dir`.
Softmax cross-entropy of logits, SGD.
"""

from __future__ import annotations

from dataclasses import dataclass

from farandole.errors import SettingsError
from farandole.workloads.parameters import Parameters, option
from farandole.workloads.workload import KerasModel, TorchModel, Workload, deferred

__all__ = ["LAYOUTS", "NETS", "WORKLOAD", "Cnn", "Net"]

LAYOUTS = ("channels_last", "channels_first")


@dataclass(frozen=True, slots=True)
class Net:
    """What a network is made for."""

    image_size: int
    least: int
    """Of an image's side, for which its layers leave something."""
    classes: int = 1000


NETS = {
    "resnet50": Net(224, 32), "resnet101": Net(224, 32), "resnet152": Net(224, 32),
    "inception_v1": Net(224, 32), "inception_v3": Net(299, 75), "inception_v4": Net(299, 75),
    "vgg_a": Net(224, 32), "vgg16": Net(224, 32), "vgg19": Net(224, 32), "alexnet": Net(224, 63),
    "resnet8": Net(32, 8, 10), "resnet20": Net(32, 8, 10), "resnet110": Net(32, 8, 10), "resnet1001": Net(32, 8, 10),
}  # fmt: skip


@dataclass(kw_only=True, slots=True)
class Cnn(Parameters):
    """The CNNs' hyper-parameters."""

    batch_size: int = option(32, "images a rank takes in a step")
    model: str = option("resnet50", "which network", tuple(NETS))
    image_size: int = option(0, "height and width of an image; 0: as the network was made for")
    classes: int = option(0, "outputs of the network; 0: 1000, 10 of CIFAR's ResNets, or as many as --data-dir has")
    images: int = option(320, "synthetic images of an epoch")
    val_split: float = option(0.1, "fraction of the files kept to test on, where --data-dir has no val folder")
    distort: bool = option(False, "change brightness and contrast of training images from files at random")
    decode_threads: int = option(0, "threads that decode files; 0: as many as the rank computes with")
    layout: str = option("channels_last", "of values in memory, of a torch module", LAYOUTS)

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        self._at_least(0, "image_size", "classes", "decode_threads")
        self._at_least(1, "images")
        if 0 < self.image_size < self.net.least:
            raise SettingsError(
                f"image_size={self.image_size} is too small for {self.model}: nothing would be left of an image. Use {self.net.least} or "
                f"more; it was made for {self.net.image_size}."
            )
        if not 0 < self.val_split < 1:
            raise SettingsError(f"val_split={self.val_split}: expected a fraction between 0 and 1, e.g. 0.1")

    @property
    def net(self) -> Net:
        return NETS[self.model]

    @property
    def side(self) -> int:
        """Of an image, in pixels."""
        return self.image_size or self.net.image_size


WORKLOAD = Workload(
    name="cnn",
    title="images to classes: ResNets, Inceptions, VGGs, AlexNet (--model), on synthetic images or JPEG folders",
    parameters=Cnn,
    presets={
        "small": {"model": "resnet8", "images": 640, "epochs": 2},
        "cifar": {"model": "resnet20", "images": 50_000, "batch_size": 128},
        "imagenet": {"model": "resnet50"},
    },
    load=deferred("farandole.workloads.cnn.data:load"),
    folder_optional=True,
    torch=TorchModel(
        build=deferred("farandole.workloads.cnn.on_torch:build"), loss=deferred("farandole.workloads.cnn.on_torch:loss"),
        metrics={"accuracy": deferred("farandole.workloads.cnn.on_torch:accuracy")},
    ),
    keras=KerasModel(
        build=deferred("farandole.workloads.cnn.on_keras:build"), loss=deferred("farandole.workloads.cnn.on_keras:loss"),
        metrics=deferred("farandole.workloads.cnn.on_keras:metrics"),
    ),
    watched="accuracy",
)  # fmt: skip
