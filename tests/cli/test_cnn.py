"""The CNNs and GPT-2 as workloads, as a user types them: on images from files, resumed, and what is refused."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "simplejpeg", "cv2")), reason="torch, simplejpeg or OpenCV is not installed"
)

LIMIT_S = 120
SHORT = ["--threads", "1", "--batch_size", "4", "--learning_rate", "0.05", "--no-page"]


def farandole(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "farandole", *words], capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def run(*words: str, cwd: Path) -> dict[str, Any]:
    done = farandole("run", *words, *SHORT, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    written = farandole(*["data", "images", "--out", "images", "--classes", "3", "--train", "8", "--test", "4", "--width", "48", "--height", "40"], cwd=folder)
    assert written.stdout == "36 images of 3 classes in images. To train on them, type: farandole run cnn --data-dir images\n", written.stderr
    return folder / "images"


@pytest.mark.parametrize("api", ["torch", pytest.param("keras", marks=pytest.mark.skipif(find_spec("keras") is None, reason="no Keras"))])
def test_a_net_learns_from_files_and_says_what_they_cost(images: Path, tmp_path: Path, api: str) -> None:
    done = farandole(
        "run", "cnn", "-n", "2", "--api", api, "--data-dir", str(images), "--epochs", "6", "--image_size", "16", *SHORT, "--output-dir", "here", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "here" / "run.json").read_text())
    assert record["final"]["train"]["accuracy"] > 0.6
    assert (record["ranks"], record["parameters"] > 74_000, len(record["data"]["stall_s"])) == (2, True, 2)
    assert sum(record["data"]["images"]) >= 6 * 24
    assert all(min(record["data"][name]) > 0 for name in ("stall_s", "read_s", "decode_s", "view_s"))
    assert "training images made, by all threads together: reading" in done.stdout


def test_resumed_and_emulated_ranks_see_the_same_images(images: Path, tmp_path: Path) -> None:
    files = ["cnn", "--api", "torch", "--data-dir", str(images), "--image_size", "16", "--distort"]
    whole = run(*files, "--epochs", "3", "--emulate-ranks", "2", "--output-dir", "whole", cwd=tmp_path)
    run(*files, "--epochs", "2", "--emulate-ranks", "2", "--checkpoint-every", "5steps", "--output-dir", "parts", cwd=tmp_path)
    resumed = run(*files, "--epochs", "3", "--emulate-ranks", "2", "--checkpoint-every", "5steps", "--output-dir", "parts", cwd=tmp_path)
    assert resumed["checkpoints"]["resumed_from"] is not None
    assert resumed["weights"]["sha256"] == whole["weights"]["sha256"]
    real = run(*files, "--epochs", "3", "-n", "2", "--decode_threads", "3", "--output-dir", "real", cwd=tmp_path)
    assert real["epochs"][0]["loss"] == pytest.approx(whole["epochs"][0]["loss"], rel=1e-5)


def test_waits_for_images_are_on_the_timeline(images: Path, tmp_path: Path) -> None:
    run("cnn", "--api", "torch", "--data-dir", str(images), "--output-dir", "here", cwd=tmp_path)
    events = json.loads((tmp_path / "here" / "timeline.json").read_text())
    assert sum(event.get("name") == "DATA" for event in events) == 2 * 6


def test_a_file_that_is_no_jpeg_ends_all_ranks_and_is_named_once(tmp_path: Path) -> None:
    farandole(*["data", "images", "--out", "images", "--classes", "2", "--train", "8", "--test", "2", "--width", "20", "--height", "20"], cwd=tmp_path)
    bad = tmp_path / "images" / "train" / "class0001" / "000005.jpg"
    bad.write_bytes(b"<html>404</html>")
    done = farandole("run", "cnn", "-n", "2", "--data-dir", "images", "--image_size", "16", *SHORT, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("000005.jpg is no JPEG that can be read") == 1, done.stderr


def test_gpt2_learns_which_tokens_come_next(tmp_path: Path) -> None:
    done = farandole("run", "gpt2", "-n", "2", "--epochs", "4", "--threads", "1", "--no-page", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    losses = [epoch["val_loss"] for epoch in json.loads(done.stdout)["epochs"]]
    assert math.log(128) > losses[0] > losses[-1]
    refused = farandole("run", "gpt2", "--width", "30", "--heads", "4", cwd=tmp_path)
    assert refused.returncode == 2 and "width=30 does not divide over heads=4 (30 % 4 = 2)" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--model", "resnet51"], 2, "model='resnet51' is unknown. Use one of resnet50, resnet101, resnet152, inception_v1"),
        (["--model", "inception_v3", "--image_size", "64"], 2, "image_size=64 is too small for inception_v3: nothing would be left of an image. Use 75 or more"),
        (["--data-dir", "nowhere"], 1, "nowhere: there is no such folder. Expected nowhere/train/CLASS/*.jpg"),
        (["--data-dir", "{images}", "--classes", "2"], 2, "classes=2: {images} has 3. Use as many or more, or leave it out."),
    ],
)
def test_what_cannot_be_trained_is_refused(images: Path, tmp_path: Path, words: list[str], code: int, told: str) -> None:
    done = farandole("run", "cnn", *(word.format(images=images) for word in words), *SHORT, cwd=tmp_path)
    assert done.returncode == code
    assert told.format(images=images) in done.stderr
