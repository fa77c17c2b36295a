"""A convolution along one axis on torch, in the layout and with the kernels that are fastest for it.

Values are images of height 1 with their channels last in memory, which is how Keras has them: nothing is copied. That
is the fastest layout for the results and for the gradient of the values, at any length. For the gradient of the
kernel it is so up to some thousand places; beyond, oneDNN's time grows with the square of the length. There it is
computed as one product of matrices for each place of the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["convolve", "pooled"]

_LONG = 2048


def convolve(values: Any, kernel: Any, bias: Any, stride: int, *, rectify: bool) -> Any:
    """(batch, length, channels), (width, channels, filters) and (filters,) -> (batch, places, filters)."""
    image, weight = _as_image(values), _as_image(kernel.permute(2, 0, 1)).contiguous(memory_format=torch.channels_last)
    if image.shape[3] > _LONG and image.requires_grad:
        found = _LongConvolution.apply(image, weight, bias, stride)  # type: ignore[no-untyped-call]
    else:
        found = functional.conv2d(image, weight, bias, stride=(1, stride))
    # Nobody else has seen the result: to change it saves memory, and a pass over it.
    return _from_image(found.relu_() if rectify else found)


def pooled(values: Any, width: int, stride: int) -> Any:
    """The largest of every `width` values along the length."""
    return _from_image(functional.max_pool2d(_as_image(values), (1, width), (1, stride)))


def _as_image(values: Any) -> Any:
    """(batch, length, channels) -> (batch, channels, 1, length), of the same memory."""
    return values.permute(0, 2, 1).unsqueeze(2)


def _from_image(values: Any) -> Any:
    return values.squeeze(2).permute(0, 2, 1)


class _LongConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Any, weight: Any, bias: Any, stride: int) -> Any:
        ctx.save_for_backward(image, weight)
        ctx.stride = stride
        return functional.conv2d(image, weight, bias, stride=(1, stride))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        image, weight = ctx.saved_tensors
        of_image, _, _ = torch.ops.aten.convolution_backward(
            grad, image, weight, None, [1, ctx.stride], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False]
        )
        return of_image, _of_weight(image, grad, weight, ctx.stride), grad.sum((0, 2, 3)), None


def _of_weight(image: Any, grad: Any, weight: Any, stride: int) -> Any:
    """For each place of the kernel, the products of all gradients with the values that it has seen."""
    filters, channels, _, width = weight.shape
    found = image.new_zeros(width, filters, channels)
    reach = (grad.shape[3] - 1) * stride + 1
    for values, gradients in zip(image.squeeze(2), grad.squeeze(2)):
        for place in range(width):
            found[place].addmm_(gradients, values.T[place : place + reach : stride])
    return found.permute(1, 2, 0).unsqueeze(2)
