"""Messages from one rank to another, by name."""

__all__: list[str] = []
