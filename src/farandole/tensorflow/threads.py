"""TensorFlow's threads: a rank's share of the cores, and enough to wait on."""

from __future__ import annotations

import contextlib
import os

import tensorflow as tf

from farandole.launch.environment import WAITING_THREADS, given_threads

__all__ = ["set_threads"]


def set_threads() -> None:
    """What the launcher gave this rank; and where nobody has said so, threads for operations that wait for other ranks.

    Each of them keeps a thread until the others have come. On a rank with one core TensorFlow would have one: two models
    that train at the same time, in another order on another rank, would wait for each other for ever.
    """
    threads, threading = given_threads(os.environ), tf.config.threading
    with contextlib.suppress(RuntimeError):  # too late: TensorFlow has begun to compute
        if threads is not None:
            threading.set_intra_op_parallelism_threads(threads)
        if not threading.get_inter_op_parallelism_threads() and "TF_NUM_INTEROP_THREADS" not in os.environ:
            threading.set_inter_op_parallelism_threads(max(WAITING_THREADS, len(os.sched_getaffinity(0))))
