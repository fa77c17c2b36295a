"""Batches that the processes of a node share, each exactly once and in one order."""

__all__: list[str] = []
