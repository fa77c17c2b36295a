"""Operations that meet by name: who wants what, when to go, and how each is done; process sets."""

__all__: list[str] = []
