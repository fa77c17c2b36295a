"""A Hugging Face model is a torch module: a small GPT-2 that learns to reverse words, on any number of ranks.

    pip install transformers
    farandole run examples/own_workload_hugging_face.py -n 2

Inputs given by name are the module's arguments; the loss gets what the module returns.
"""

from dataclasses import dataclass

import numpy as np
import torch

from farandole.workloads import Parameters, TorchModel, TrainingData, Workload, option, split

LETTERS, LENGTH = 10, 6
STOP = LETTERS  # between a word and its reverse
IGNORED = -100  # places whose letter nobody can know


@dataclass(kw_only=True)
class Settings(Parameters):
    epochs: int = option(6, "passes over the training data")
    batch_size: int = option(32, "batch size per rank")
    optimizer: str = option("adam", "which")
    learning_rate: float | None = option(0.002, "of one rank alone")
    layers: int = option(2, "transformer blocks")
    width: int = option(64, "of the embeddings")


def load(parameters: Settings, folder) -> TrainingData:
    words = np.random.default_rng(0).integers(0, LETTERS, (4000, LENGTH))
    tokens = np.concatenate([words, np.full((4000, 1), STOP), words[:, ::-1]], axis=1)
    targets = np.where(np.arange(tokens.shape[1] - 1) < LENGTH, IGNORED, tokens[:, 1:])
    return split({"input_ids": tokens[:, :-1]}, targets)


def build(parameters: Settings, data: TrainingData) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": parameters.layers, "n_embd": parameters.width, "n_head": 4, "n_positions": 2 * LENGTH}
    return GPT2LMHeadModel(GPT2Config(vocab_size=LETTERS + 1, bos_token_id=STOP, eos_token_id=STOP, use_cache=False, **sizes))


def loss(outputs, targets) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def accuracy(outputs, targets) -> torch.Tensor:
    """Of each word: the share of its letters that are right."""
    return (outputs.logits.argmax(-1) == targets)[:, LENGTH:].float().mean(1)


MODEL = TorchModel(build=build, loss=loss, metrics={"accuracy": accuracy})
WORKLOAD = Workload(name="reversed-words", title="words reversed by a small GPT-2", parameters=Settings, load=load, torch=MODEL, watched="accuracy")
