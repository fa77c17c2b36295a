"""How arrays travel between ranks: within each node, between nodes, and why in a slower way than they could."""

from __future__ import annotations

import warnings

from farandole.comm.bytes.transport import Transport
from farandole.comm.node.exchange import Exchange, open_exchange
from farandole.comm.node.layout import Layout

__all__ = ["Routes", "fallbacks", "note_fallback"]

_fallbacks: list[str] = []


def note_fallback(reason: str, *, speak: bool) -> None:
    """Keep, and say once, why arrays travel in a slower way than they could."""
    if reason not in _fallbacks:
        _fallbacks.append(reason)
        if speak:
            warnings.warn(f"farandole: within a node arrays travel in a slower way: {reason}", stacklevel=4)


def fallbacks() -> list[str]:
    """The slower ways taken so far, and why."""
    return list(_fallbacks)


class Routes:
    """The ways between the ranks of one transport. Collective to make.

    Where neighbours on any node can neither read each other's memory nor share some, every rank counts as a node of its own.
    """

    def __init__(self, transport: Transport, slot_bytes: list[int]) -> None:
        self.node = transport.same_node()
        self.layout = Layout.gather(transport, self.node)
        self.exchange: Exchange | None = None
        """With neighbours; None without any."""
        kinds = self._open_exchange(transport, slot_bytes) - {"alone"}
        if "none" in kinds:
            self.exchange, kinds = None, set()
            self.layout = Layout(tuple((rank,) for rank in range(transport.size)))
        self.within = "+".join(sorted(kinds))
        """The kinds of exchange within the nodes, alike on all ranks."""
        self.bounded = "window" in kinds
        """Whether any node has room only for arrays of the size given; alike on all ranks."""
        self.node_index, self.local_rank = self.layout.place(transport.rank)
        self.cross = self._make_cross(transport)
        """Of the ranks that carry the same slice on each node; None for one node, and for ranks that carry none."""
        self.kind = "alone" if transport.size == 1 else "mpi" if self.exchange is None else self.exchange.kind
        """How this rank's arrays travel: `direct`, `window`, `mpi`, or `alone`."""

    def _open_exchange(self, transport: Transport, slot_bytes: list[int]) -> set[str]:
        """Which kinds of exchange the nodes have; `none` where neighbours have no way."""
        kind, reason = "alone", ""
        if self.node.size > 1:
            self.exchange, reason = open_exchange(self.node, slot_bytes)
            kind = "none" if self.exchange is None else self.exchange.kind
        kinds, reasons = zip(*transport.allgather_object((kind, reason)))
        for each in filter(None, reasons):
            note_fallback(each, speak=transport.rank == 0)
        return set(kinds)

    def _make_cross(self, transport: Transport) -> Transport | None:
        if len(self.layout.nodes) == 1 or self.local_rank >= self.layout.carriers:
            return None
        return transport.subset([ranks[self.local_rank] for ranks in self.layout.nodes])

    @property
    def neighbours(self) -> tuple[int, ...]:
        """The transport's ranks on this node, this one among them."""
        return self.layout.nodes[self.node_index]

    @property
    def on_one_node(self) -> bool:
        """Whether all ranks are neighbours that can read each other's memory."""
        return self.exchange is not None and len(self.layout.nodes) == 1

    def free(self) -> None:
        self.node.free()
        if self.cross is not None:
            self.cross.free()
