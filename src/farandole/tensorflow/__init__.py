"""The TensorFlow door."""
__all__: list[str] = []
