"""`farandole checkpoint`, as a user types it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from farandole.checkpoint.keeping import Keep
from farandole.checkpoint.manifest import Manifest
from farandole.checkpoint.store import Store
from ranktest import run_ranks
from repository import ROOT


def farandole(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farandole", "checkpoint", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two whole checkpoints, one damaged in the middle of its arrays, and one unfinished."""
    store = Store(tmp_path / "run", Keep(last=9), print)
    for step in (10, 20, 30):
        manifest = Manifest(
            step=step, epoch=1, ranks=2, saved_at=1.7e9, train_s=12.0, energy_j=None, version="test",
            metrics={"loss": 1 / step},
        )  # fmt: skip
        state = {"parts": {"model": {"w": {"$array": "model/w"}}, "schedule": {"rate": 0.5}}}
        store.write(manifest, state, {"model/w": np.full((50, 4), step, np.float32)})
    store.close()
    path = tmp_path / "run" / "00000002-step-20" / "arrays.safetensors"
    data = bytearray(path.read_bytes())
    data[-400] ^= 8
    path.write_bytes(data)
    (tmp_path / "run" / "unfinished-00000004-step-40").mkdir()
    return tmp_path / "run"


def test_ls_lists_all_of_them(folder: Path) -> None:
    run = farandole("ls", folder)
    assert run.returncode == 0
    lines = run.stdout.splitlines()
    assert [line.split("0000000")[-1].split()[0] for line in lines] == ["1-step-10", "2-step-20", "3-step-30", "4-step-40"]
    assert "2 ranks  epoch 1  12 s" in lines[0]
    assert lines[0].endswith("loss 0.1")
    assert lines[3].endswith("unfinished")
    assert [row["step"] for row in json.loads(farandole("ls", folder, "--json").stdout)] == [10, 20, 30, 40]


def test_verify_names_the_damaged_one(folder: Path) -> None:
    run = farandole("verify", folder)
    assert run.returncode == 1
    assert run.stdout.splitlines()[::2] == ["00000001-step-10: whole", "00000003-step-30: whole"]
    assert "00000002-step-20: damaged: arrays.safetensors does not fit its checksum" in run.stdout
    assert farandole("verify", folder / "00000003-step-30").returncode == 0


def test_show_says_what_is_in_the_newest_or_in_one(folder: Path) -> None:
    run = farandole("show", folder)
    assert run.returncode == 0
    assert "00000003-step-30" in run.stdout
    assert "  model/w  float32 [50, 4]\n" in run.stdout
    assert '  schedule: {"rate": 0.5}' in run.stdout
    told = json.loads(farandole("show", folder / "00000001-step-10", "--json").stdout)
    assert (told["step"], told["arrays"]["model/w"]["shape"]) == (10, [50, 4])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("state.json", b'{"parts": ', "state.json has 10 bytes instead of"),
        ("manifest.json", b"", "manifest.json cannot be read"),
        ("arrays.safetensors", None, "arrays.safetensors is missing"),
    ],
)
def test_show_of_a_damaged_one_says_what_is_wrong(folder: Path, name: str, content: bytes | None, said: str) -> None:
    path = folder / "00000003-step-30" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    run = farandole("show", folder)
    assert run.returncode == 1
    assert run.stderr.startswith(f"farandole: {path.parent} is damaged: {said}")


@pytest.mark.parametrize("action", ["ls", "verify", "show"])
def test_a_folder_without_any_is_said_so(tmp_path: Path, action: str) -> None:
    run = farandole(action, tmp_path)
    assert run.returncode == 1
    assert run.stderr == f"farandole: {tmp_path} is no checkpoint, and has none\n"


def documented_loop() -> str:
    text = (ROOT / "docs" / "checkpoints.md").read_text()
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if "farandole.torch" in block and "init()" in block]
    return str(code).replace("seconds=600", "steps=7").replace("step < 1000", "step < STEPS")


def test_the_documented_loop_goes_on_where_it_was(tmp_path: Path) -> None:
    script = "import sys\nSTEPS = int(sys.argv[1])\n" + documented_loop() + "result(model.weight.tolist())\n"
    options = {"cwd": tmp_path, "launcher": "farandole", "timeout": 90.0}
    run_ranks(1, script, args=["16"], **options)  # saved at 7 and 14
    again = run_ranks(2, script, args=["30"], **options)
    assert "00000002-step-14 (step 14, epoch 0)" in again.stderr
    assert again.results[0] == again.results[1]
