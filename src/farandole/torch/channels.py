"""Channels for tensors, with gradients: backward of what was received sends the gradient back to where it came from."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from farandole.comm.channels.messages import Expected, Received, Transfer
from farandole.comm.current import current
from farandole.comm.named.submit import issue
from farandole.torch.tensors import as_array, as_tensor

__all__ = ["receive", "receive_async", "send", "send_async", "sendrecv"]

Tensor = torch.Tensor


def send(tensor: Tensor, dest: int, name: str) -> Tensor | None:
    """Send a tensor to rank `dest`, which receives it by this name; afterwards it may be changed.

    Of a tensor that requires a gradient, the result is a scalar to call `backward()` on, which waits for the gradient
    that `dest` sends in its own backward.
    """
    transfer = _sent(tensor, dest, name, background=False)
    current().transfers.wait(transfer)
    return _to_call_backward_on(tensor, transfer, name)


def send_async(tensor: Tensor, dest: int, name: str) -> int:
    """`send` in the background; returns a handle for `poll` and `synchronize`. Leave the tensor as it is until then."""
    transfer = _sent(tensor, dest, name, background=True)
    scalar = _to_call_backward_on(tensor, transfer, name)
    return issue(current().transfers, transfer, lambda _: scalar)


def receive(source: int, name: str, like: Tensor | None = None) -> Tensor:
    """The next tensor of this name from rank `source`; it requires a gradient where the sender's does.

    `like`: a tensor of the type, shape and device that is expected; without it anything is taken, into the host's memory.
    """
    transfers = current().transfers
    transfer = transfers.receive(source, name, _expected(like), background=False)
    return _tensor(source, name, like, transfers.wait(transfer))


def receive_async(source: int, name: str, like: Tensor | None = None) -> int:
    """`receive` in the background; returns a handle, for which `synchronize` returns the tensor."""
    transfers = current().transfers
    transfer = transfers.receive(source, name, _expected(like), background=True)
    return issue(transfers, transfer, partial(_tensor, source, name, like))


def sendrecv(tensor: Tensor, dest: int, source: int, name: str, like: Tensor | None = None) -> Tensor:
    """Send to one rank while receiving from another, or the same; without gradients."""
    with torch.no_grad():
        transfer = _sent(tensor, dest, name, background=True)
        found = receive(source, name, like)
        current().transfers.wait(transfer)
    return found


def _sent(tensor: Tensor, dest: int, name: str, *, background: bool) -> Transfer:
    array = as_array(tensor)
    return current().transfers.send(array, dest, name, background=background, differentiable=_recorded(tensor))


def _recorded(tensor: Tensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def _expected(like: Tensor | None) -> Expected:
    if like is None:
        return Expected()
    return Expected(as_array(torch.empty(0, dtype=like.dtype)).dtype, tuple(like.shape))


def _gradient_of(name: str, number: int) -> str:
    """Each message's gradient has its own name: backwards may come in another order than forwards."""
    return f"{name}.gradient.{number}"


def _to_call_backward_on(tensor: Tensor, transfer: Transfer, name: str) -> Tensor | None:
    if not _recorded(tensor):
        return None
    result: Tensor = _Sent.apply(tensor, transfer.peer, _gradient_of(name, transfer.number))  # type: ignore[no-untyped-call]
    return result


def _tensor(source: int, name: str, like: Tensor | None, received: Received) -> Tensor:
    tensor = as_tensor(received.array)
    if like is not None:
        tensor = tensor.to(like.device)
    if not (received.differentiable and torch.is_grad_enabled()):
        return tensor
    hook = torch.empty(0, requires_grad=True)  # autograd records only what depends on such a one
    result: Tensor = _Received.apply(hook, [tensor], source, _gradient_of(name, received.number))  # type: ignore[no-untyped-call]
    return result


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        tensor, ctx.dest, ctx.name = args
        ctx.like = tensor.new_empty(()).expand(tensor.shape)
        return tensor.new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: Any) -> Any:
        return receive(ctx.dest, ctx.name, ctx.like), None, None


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        _, (tensor,), ctx.source, ctx.name = args
        return tensor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        gradient = as_array(grads[0].contiguous())
        # Its sender may be in the middle of its forward for long: this rank goes on.
        current().transfers.send(gradient, ctx.source, ctx.name, background=True, detached=True)
        return None, None, None, None
