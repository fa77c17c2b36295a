"""What the Keras door says to a Keras, a TensorFlow or a backend that it cannot work with, and the two LARS."""

import subprocess
import sys
import textwrap

import pytest

STAND_IN = {
    "Keras 2": ("__version__ = '2.15.0'", "", "Keras 2.15.0 is installed, farandole.keras needs Keras 3"),
    "no backend of ours": (
        "__version__ = '3.15.1'\nclass backend:\n    backend = staticmethod(lambda: 'numpy')",
        "",
        "Keras computes with 'numpy', farandole.keras with one of torch, tensorflow, jax",
    ),
    "TensorFlow 2.15": (
        "__version__ = '3.15.1'\nclass backend:\n    backend = staticmethod(lambda: 'tensorflow')",
        "__version__ = '2.15.1'",
        "TensorFlow 2.15.1 is installed, Keras 3 needs 2.16 or newer",
    ),
}


def python(code, cwd, **environment):
    import os

    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("which", STAND_IN)
def test_what_it_cannot_work_with_is_told_with_what_to_type(tmp_path, which):
    keras, tensorflow, told = STAND_IN[which]
    (tmp_path / "keras.py").write_text(keras)
    (tmp_path / "tensorflow.py").write_text(tensorflow)
    run = python("import farandole.keras", tmp_path, PYTHONPATH=str(tmp_path))
    assert run.returncode != 0
    assert f"SettingsError: {told}" in run.stderr


def test_an_optimizer_before_init_is_told(tmp_path):
    code = """
        import farandole.keras as hvd, keras, sys
        try:
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        except ValueError as error:
            print(error)
        print("mpi4py.MPI" in sys.modules)
    """
    run = python(code, tmp_path, KERAS_BACKEND="jax")
    assert "call farandole.init() first" in run.stdout, run.stderr
    assert run.stdout.endswith("False\n")


@pytest.mark.more
def test_both_lars_make_the_steps_of_the_paper(tmp_path):
    code = """
        import keras, numpy as np, torch
        from farandole.optim import lars_keras, lars_torch
        rng = np.random.default_rng(0)
        start = [rng.normal(size=(5, 3)), rng.normal(size=3)]
        kept = [keras.Variable(value, dtype="float64") for value in start]
        ours = [torch.nn.Parameter(torch.tensor(value)) for value in start]
        a = lars_keras.LARS(0.25, lars_weight_decay=0.5, trust_coefficient=0.125)
        b = lars_torch.LARS(ours, 0.25, weight_decay=0.5, trust_coefficient=0.125)
        weights, momenta = [value.copy() for value in start], [np.zeros(value.shape) for value in start]
        for _ in range(3):
            grads = [rng.normal(size=value.shape) for value in start]
            for w, v, g in zip(weights, momenta, grads):
                norm = np.linalg.norm
                rate = 0.25 * 0.125 * norm(w) / (norm(g) + 0.5 * norm(w)) if w.ndim > 1 else 0.25
                v[:] = 0.9 * v + rate * (g + 0.5 * w if w.ndim > 1 else g)
                w -= v
            a.apply([torch.tensor(g) for g in grads], kept)
            for p, g in zip(ours, grads):
                p.grad = torch.tensor(g)
            b.step()
        for v, p, wanted in zip(kept, ours, weights):
            np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=1e-7)  # epsilon is 1e-8
            np.testing.assert_allclose(keras.ops.convert_to_numpy(v), wanted, rtol=1e-5)  # Keras' norms are float32
        again = keras.optimizers.deserialize(keras.optimizers.serialize(a))
        assert again.get_config() == a.get_config()
    """
    run = python(code, tmp_path, KERAS_BACKEND="torch")
    assert run.returncode == 0, run.stderr
