"""`farandole bench cnn`: images per second of training, with the flags and lines of tf_cnn_benchmarks or of Horovod's benchmark."""

__all__: list[str] = []
