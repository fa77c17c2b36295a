"""Gradients: the plan all ranks agree on once, and the threads that carry it out."""

__all__: list[str] = []
