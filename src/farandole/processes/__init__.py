"""Commands as children of ours: signals passed on, nothing left when they end. Whatever starts a command does it by this."""

__all__: list[str] = []
