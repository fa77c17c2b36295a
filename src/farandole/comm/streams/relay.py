"""From the stream of one node to those of others: each slot goes to each node once, over a channel, whatever its number of subscribers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farandole.comm.channels.channels import receive, send_async
from farandole.comm.current import current
from farandole.comm.named.submit import synchronize
from farandole.comm.streams.streams import Stream
from farandole.errors import FarandoleError, SettingsError

__all__ = ["relay"]

_SLOT = ""
"""What announces a slot; at the end of the stream there is a reason instead, or _END."""
_END = "end"


def relay(stream: Stream, source: int, dests: Sequence[int]) -> int:
    """Copy the slots of rank `source`'s node into the streams on the nodes of ranks `dests`, until it ends; how many there were.

    Collective over these ranks: each opens the stream and calls this, in a thread of its own or as all it does. To its node
    a rank of `dests` is a producer.
    """
    here = current().rank
    if source in dests or here not in (source, *dests):
        raise SettingsError(f"relay(source={source}, dests={list(dests)}): called on rank {here}; give one source, others as dests")
    return _give(stream, dests) if here == source else _take(stream, source)


def _give(stream: Stream, dests: Sequence[int]) -> int:
    count, last = 0, _END
    with stream.subscribe(name=f"relay of rank {current().rank}") as subscriber:
        try:
            for slot in subscriber.raw():
                _send_all(stream, _text(_SLOT), dests)
                _send_all(stream, slot, dests)
                count += 1
        except FarandoleError as error:
            last = str(error)
            raise
        finally:
            _send_all(stream, _text(last), dests)
    return count


def _send_all(stream: Stream, array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], dests: Sequence[int]) -> None:
    handles = [send_async(array, dest, f"relay.{stream.name}") for dest in dests]
    for handle in handles:
        synchronize(handle)


def _take(stream: Stream, source: int) -> int:
    count = 0
    with stream.producer(name=f"relay of rank {current().rank}") as producer:
        while not (word := receive(source, f"relay.{stream.name}").tobytes().decode()):
            with producer.raw_slot() as slot:
                receive(source, f"relay.{stream.name}", out=slot)
            count += 1
        if word != _END:
            producer.fail(word)
    return count


def _text(word: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.frombuffer(word.encode(), np.uint8)
