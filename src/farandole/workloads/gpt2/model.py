"""GPT-2 (Radford 2019) as a plain torch module: the weights of the first and the last layer are the same ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from farandole.workloads.gpt2 import Gpt2
from farandole.workloads.samples import TrainingData

__all__ = ["GPT2", "build", "loss"]

_DEVIATION = 0.02


class Attention(nn.Module):
    """Every token looks at those before it."""

    def __init__(self, settings: Gpt2) -> None:
        super().__init__()
        self._heads, self._dropout = settings.heads, settings.dropout
        self.qkv = nn.Linear(settings.width, 3 * settings.width)
        self.out = nn.Linear(settings.width, settings.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.qkv(x).view(batch, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        dropped = self._dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropped, is_causal=True)
        return self.out(seen.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, settings: Gpt2) -> None:
        super().__init__()
        width = settings.width
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(settings), nn.LayerNorm(width)
        self.wide, self.gelu, self.out = nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.out(self.gelu(self.wide(self.norm2(x)))))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """Tokens (n, t) to scores of the next ones (n, t, vocabulary)."""

    def __init__(self, settings: Gpt2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(settings.vocabulary, settings.width)
        self.places = nn.Embedding(settings.context, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, settings.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self._start_values(settings.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.tokens(tokens) + self.places(torch.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]

    def _start_values(self, layers: int) -> None:
        """What is added to the values of a token begins smaller the more layers add to it."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                added = name.endswith("out.weight")
                nn.init.normal_(parameter, 0.0, _DEVIATION / math.sqrt(2 * layers) if added else _DEVIATION)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def build(parameters: Gpt2, data: TrainingData) -> nn.Module:
    return GPT2(parameters)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
