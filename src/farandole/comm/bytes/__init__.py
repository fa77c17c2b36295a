"""What moves bytes between ranks: transports, MPI, and how every wait is done."""

__all__: list[str] = []
