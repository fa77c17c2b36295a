"""What happened in a run: the timeline of every rank. Knows nothing of MPI or of any framework."""

__all__: list[str] = []
