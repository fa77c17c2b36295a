"""What collectives cost on these ranks: `farandole bench comm`."""

__all__: list[str] = []
