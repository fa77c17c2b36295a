"""Buffers to all ranks: the world, process sets, the engine, gradient plans, the watchdog."""

__all__: list[str] = []
