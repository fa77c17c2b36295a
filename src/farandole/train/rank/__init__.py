"""A run on the ranks that were started: load, build, broadcast, train, evaluate, save."""

__all__: list[str] = []
