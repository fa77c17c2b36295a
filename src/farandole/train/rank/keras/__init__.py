"""Training Keras models, on torch, TensorFlow or JAX. Imported only by runs whose workload has one."""

__all__: list[str] = []
