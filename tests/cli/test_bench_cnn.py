"""`farandole bench cnn`: the lines of tf_cnn_benchmarks and of Horovod's benchmark, the steps of `farandole run`, and bad input."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import pytest

from farandole.study.cnn.text import Rate
from ranktest import run_ranks

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

NET = ["--model", "resnet8", "--image_size", "8", "--batch_size", "4", "--num_intra_threads", "1"]
AS_RANK = "import sys; from farandole.cli import main; sys.exit(main(['bench', 'cnn', *sys.argv[1:]]))"


def farandole(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=120, cwd=cwd, stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_rates_are_those_of_tf_cnn_benchmarks() -> None:
    rate = Rate.of([0.1, 0.2, 0.1, 0.4], 8)  # 80, 40, 80, 20 a second
    assert rate.mean == pytest.approx(8 / 0.2)
    assert rate.uncertainty == pytest.approx(25.98076 / 2)
    assert rate.jitter == pytest.approx(1.4826 * 20)


@pytest.mark.parametrize(
    "framework",
    ["torch", pytest.param("keras-torch", marks=[pytest.mark.more, pytest.mark.skipif(find_spec("keras") is None, reason="no Keras")])],
)
def test_two_ranks_of_its_own_train_as_a_run_does(tmp_path: Path, framework: str) -> None:
    steps = ["--num_batches", "7", "--num_warmup_batches", "0", "--display_every", "3"]
    done = farandole("bench", "cnn", *NET, *steps, "-n", "2", "--framework", framework, "--json", "here.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[lines.index("Step\tImg/sec\ttotal_loss") - 2 :][:2] == ["Running warm up", "Done warm up"]
    shown = [found for line in lines if (found := re.fullmatch(r"(\d+)\timages/sec: ([\d.]+) \+/- ([\d.]+) \(jitter = ([\d.]+)\)\t(\d+\.\d{3})", line))]
    assert [int(found[1]) for found in shown] == [1, 3, 6]
    assert lines[-3] == lines[-1] == "-" * 64
    assert "Batch size:  8 global" in lines and "             4 per device" in lines

    found = json.loads((tmp_path / "here.json").read_text())
    assert lines[-2] == f"total images/sec: {found['samples_per_s']:.2f}"
    assert (found["kind"], found["schema"], found["ranks"], found["threads"]) == ("farandole bench cnn", 1, 2, [1, 1])
    assert len(found["steps_s"]) == 7 and found["samples_per_s"] == pytest.approx(56 / sum(found["steps_s"]))
    assert found["to_first_step_s"] > 0 and found["environment"]
    assert [f"{found['losses'][step - 1]:.3f}" for step in (1, 3, 6)] == [one[5] for one in shown]

    api = "torch" if framework == "torch" else "keras"
    words = ["--model", "resnet8", "--image_size", "8", "--batch_size", "4", "--threads", "1", "--images", "56", "--lr-scaling", "none", "--epochs", "1"]
    run = farandole("run", "cnn", "-n", "2", "--api", api, *words, "--json", "--no-page", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["epochs"][0]["loss"] == pytest.approx(fmean(found["losses"]), rel=1e-4)


def test_ranks_of_another_launcher_print_horovod_s_lines_once(tmp_path: Path) -> None:
    words = [*NET, "--style", "horovod", "--num-iters", "3", "--num-batches-per-iter", "2", "--num-warmup-batches", "1", "--json", "here.json"]
    lines = run_ranks(2, AS_RANK, args=words, cwd=tmp_path, timeout=60).stdout.splitlines()
    assert lines[:5] == ["Model: resnet8", "Batch size: 4", "Number of CPUs: 2", "Running warmup...", "Running benchmark..."]
    assert [re.sub(r"\d+\.\d", "X", line) for line in lines[5:]] == [
        *(f"Iter #{number}: X img/sec per CPU" for number in range(3)), "Img/sec per CPU: X +-X", "Total img/sec on 2 CPU(s): X +-X",
    ]  # fmt: skip
    rates = [float(re.findall(r"[\d.]+", line)[-1]) for line in lines[5:8]]
    assert float(lines[8].split()[3]) == pytest.approx(fmean(rates), abs=0.2)
    assert float(lines[9].split()[-2]) == pytest.approx(2 * fmean(rates), abs=0.3)
    assert json.loads((tmp_path / "here.json").read_text())["settings"]["num_batches"] == 6


@pytest.mark.skipif(find_spec("simplejpeg") is None or find_spec("cv2") is None, reason="simplejpeg and OpenCV are not installed")
def test_image_files_last_for_as_many_steps_as_asked_for(tmp_path: Path) -> None:
    farandole("data", "images", "--out", "images", "--classes", "2", "--train", "6", "--test", "1", "--width", "20", "--height", "20", cwd=tmp_path)
    words = ["--data_dir", "images", "--num_batches", "7", "--num_warmup_batches", "1", "--json", "here.json"]
    done = farandole("bench", "cnn", *NET, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "here.json").read_text())
    assert len(found["steps_s"]) == 7 and found["data_stall_s"] > 0
    assert "Dataset:     images" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--model", "resnet51"], 2, "--model resnet51: use one of resnet50, resnet101"),
        (["--model", "inception3", "--image_size", "30"], 2, "image_size=30 is too small for inception_v3"),
        (["--framework", "mxnet"], 2, "--framework mxnet: use one of torch, keras-torch, tensorflow, jax"),
        (["--num_batches", "0"], 2, "--num_batches 0: expected 1 or more"),
        (["--num-iters", "3"], 2, "--num-iters: of --style horovod alone"),
        (["--style", "horovod", "--num_batches", "15"], 2, "--num_batches 15 does not divide into measurements of 10 steps"),
        (["--model", "gpt2-small", "--framework", "jax"], 2, "--framework jax: gpt2-small is a plain torch module"),
        (["--data_dir", "nowhere"], 1, "nowhere: there is no such folder"),
        (["--json", "no/such/folder.json"], 2, "--json"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(tmp_path: Path, words: list[str], code: int, told: str) -> None:
    done = farandole("bench", "cnn", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert f"farandole: {told}" in done.stderr
