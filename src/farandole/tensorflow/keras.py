"""`import farandole.tensorflow.keras as hvd`: farandole.keras, where scripts had `horovod.tensorflow.keras`."""

from farandole.keras import *  # noqa: F403
from farandole.keras import __all__ as __all__
