"""What the ranks of a node share: windows and boards in shared memory, arithmetic on them, the two-level reduction."""

__all__: list[str] = []
