"""What `farandole observe` puts first on PYTHONPATH: a folder of one module, which Python runs before any script."""

__all__: list[str] = []
