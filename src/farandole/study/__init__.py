"""Many measurements of one question: `farandole study`."""
__all__: list[str] = []
