"""Channels: arrays sent from one rank to another, by name (docs/channels.md)."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.comm.bytes.transport import AnyArray
from farandole.comm.channels.messages import Expected, Received
from farandole.comm.current import current
from farandole.comm.named.submit import issue
from farandole.errors import SettingsError

__all__ = ["receive", "receive_async", "send", "send_async", "sendrecv"]


def send(tensor: Any, dest: int, name: str) -> None:
    """Send an array to rank `dest`, which receives it by this name; afterwards it may be changed."""
    transfers = current().transfers
    transfers.wait(transfers.send(np.asarray(tensor), dest, name, background=False))


def send_async(tensor: Any, dest: int, name: str) -> int:
    """`send` in the background; returns a handle for `poll` and `synchronize`. Leave the array as it is until then."""
    transfers = current().transfers
    return issue(transfers, transfers.send(np.asarray(tensor), dest, name, background=True), _nothing)


def receive(source: int, name: str, like: Any = None, out: AnyArray | None = None) -> AnyArray:
    """The next array of this name from rank `source`.

    `like`: an array of the type and shape that is expected; without it anything is taken. `out`: where it is written.
    """
    transfers = current().transfers
    expected = _expected(like, out)
    return _array(transfers.wait(transfers.receive(source, name, expected, background=False)))


def receive_async(source: int, name: str, like: Any = None, out: AnyArray | None = None) -> int:
    """`receive` in the background; returns a handle, for which `synchronize` returns the array."""
    transfers = current().transfers
    return issue(transfers, transfers.receive(source, name, _expected(like, out), background=True), _array)


def sendrecv(tensor: Any, dest: int, source: int, name: str, like: Any = None, out: AnyArray | None = None) -> AnyArray:
    """Send to one rank while receiving from another, or the same."""
    transfers = current().transfers
    sent = transfers.send(np.asarray(tensor), dest, name, background=True)
    found = receive(source, name, like, out)
    transfers.wait(sent)
    return found


def _expected(like: Any, out: AnyArray | None) -> Expected:
    if out is not None and not (out.flags.c_contiguous and out.flags.writeable):
        raise SettingsError("receive(out=...): give a contiguous array that can be written")
    if like is None and out is None:
        return Expected()
    wanted = np.asarray(out if like is None else like)
    if out is not None and (out.dtype, out.shape) != (wanted.dtype, wanted.shape):
        raise SettingsError(f"receive: like is {wanted.dtype} {wanted.shape}, out is {out.dtype} {out.shape}; give one of them")
    return Expected(wanted.dtype, wanted.shape, out)


def _array(received: Received) -> AnyArray:
    return received.array


def _nothing(_: Any) -> None:
    return
