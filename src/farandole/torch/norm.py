"""Batch normalisation over the batches of all ranks, on any device whose tensors can travel."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from farandole.comm.named.process_sets import ProcessSet, global_process_set
from farandole.comm.named.submit import Sum
from farandole.comm.world import is_initialized
from farandole.torch.ops import allgather, allreduce

__all__ = ["SyncBatchNorm"]

_numbers = itertools.count()


class SyncBatchNorm(_BatchNorm):
    """As torch's BatchNorm1d, 2d and 3d, with the statistics of the whole batch, whatever each rank's share.

    In training its forward and backward are collective: every rank of the set calls them.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self._process_set = process_set
        # Layers are made in the same order on every rank; so their exchanges meet.
        self._name = f"SyncBatchNorm.{next(_numbers)}"

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with every BatchNorm layer in it replaced by one of these, which takes over its state."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            return cls._in_place_of(module, process_set)
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_set))
        return module

    @classmethod
    def _in_place_of(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        new = cls(
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
            process_set=process_set,
        )
        new.weight, new.bias = layer.weight, layer.bias
        new.running_mean, new.running_var = layer.running_mean, layer.running_var
        new.num_batches_tracked = layer.num_batches_tracked
        return new.train(layer.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm({self.num_features}) expects (batch, {self.num_features}, ...), got {tuple(input.shape)}"
            )

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        own_statistics = self.training or self.running_mean is None
        if not own_statistics or not is_initialized() or self._process_set.size() == 1:
            return super().forward(input)
        function: Any = _Normalise
        output, mean, variance, count = function.apply(
            input, self.weight, self.bias, self.eps, self._process_set, self._name
        )
        if self.training and self.track_running_stats:
            self._track(mean, variance, count)
        return output  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(unbiased.to(self.running_var), share)


class _Normalise(torch.autograd.Function):
    """(output, mean, variance, count) of the batches of all ranks."""

    @staticmethod
    def forward(
        context: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        process_set: ProcessSet,
        name: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, variance, count = _of_all(x, process_set, name)
        if count < 2:
            raise ValueError(f"SyncBatchNorm: {int(count)} value per channel over all ranks; training needs 2")
        scale = torch.rsqrt(variance + eps)
        normalised = (x - _wide(mean, x)) * _wide(scale, x)
        context.save_for_backward(normalised, scale, weight)
        context.process_set, context.name, context.count = process_set, name, count
        context.mark_non_differentiable(mean, variance, count)
        output = normalised if weight is None else normalised * _wide(weight, x)
        if bias is not None:
            output = output + _wide(bias, x)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        normalised, scale, weight = context.saved_tensors
        dy = gradient.to(normalised.dtype)
        others = _all_but_channels(dy)
        sums = torch.stack([dy.sum(others), (dy * normalised).sum(others)])  # (2, channels)
        means = allreduce(sums, name=f"{context.name}.backward", op=Sum, process_set=context.process_set)
        means = means / context.count
        factor = scale if weight is None else scale * weight
        dx = (dy - _wide(means[0], dy) - normalised * _wide(means[1], dy)) * _wide(factor, dy)
        d_weight, d_bias = (None, None) if weight is None else (sums[1].to(weight), sums[0].to(weight))
        return dx.to(gradient.dtype), d_weight, d_bias, None, None, None


def _all_but_channels(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _wide(per_channel: Tensor, like: Tensor) -> Tensor:
    return per_channel.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))


def _of_all(x: Tensor, process_set: ProcessSet, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance (each one a channel) and count over all ranks, from each rank's own: no cancellation."""
    others = _all_but_channels(x)
    count = x.numel() // max(x.shape[1], 1)
    mean = x.mean(others) if count else torch.zeros(x.shape[1], dtype=x.dtype, device=x.device)
    spread = (x - _wide(mean, x)).square().sum(others)
    mine = torch.cat([mean, spread, torch.full((1,), float(count), dtype=x.dtype, device=x.device)])
    rows = allgather(mine.double().unsqueeze(0), name=f"{name}.forward", process_set=process_set)
    means, spreads = rows[:, :-1].chunk(2, dim=1)  # (ranks, channels)
    counts = rows[:, -1:]
    total = counts.sum()
    mean_of_all = (means * counts).sum(0) / total
    variance = (spreads.sum(0) + (counts * (means - mean_of_all).square()).sum(0)) / total
    return mean_of_all.to(x.dtype), variance.to(x.dtype), total.to(x.dtype)
