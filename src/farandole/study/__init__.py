"""Many measurements of one question: `farandole study loaders`."""
__all__: list[str] = []
