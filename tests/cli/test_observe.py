"""Scripts that know nothing of farandole, observed from outside; and our own ranks, with a straggler among them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from farandole.observe.analysis import analyse
from ranktest import run_ranks

LIMIT_S = 120

TORCH = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 24
    def __getitem__(self, at):
        time.sleep(0.005)
        return torch.full((8,), float(at)), torch.zeros(1)

import farandole
with farandole.observe.energy("prepare"):  # the only line that knows farandole, and could be left out
    time.sleep(0.05)

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x, y in DataLoader(Slow(), batch_size=4):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
print("trained")
"""

DDP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(6):
    if rank == 1:
        time.sleep(0.05)
    optimizer.zero_grad()
    model(torch.ones(4, 256)).sum().backward()
    optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
"""

KERAS = """
import time, keras, numpy as np
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((24, 4), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Slow()], validation_data=(x[:4], x[:4, :1]))
print(keras.backend.backend())
"""


def observe(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[subprocess.CompletedProcess[str], dict]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("FARANDOLE", "HOROVOD"))}
    told = subprocess.run(
        [sys.executable, "-m", "farandole", "observe", "--out", str(folder / "seen"), "--", *words],
        capture_output=True, text=True, timeout=LIMIT_S, check=False, stdin=subprocess.DEVNULL, cwd=folder,
        env=base | {"OMP_NUM_THREADS": "1"} | (env or {}),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return told, analyse(folder / "seen" / "timeline.json")


def calls(found: dict) -> dict[str, float]:
    return {row["name"]: row["calls"] for row in found["components"]}


def test_a_plain_torch_script(tmp_path: Path) -> None:
    # A sitecustomize of the user's own still runs.
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    (tmp_path / "train.py").write_text(TORCH)
    told, found = observe(tmp_path, sys.executable, "train.py", env={"PYTHONPATH": str(tmp_path)})
    assert told.stdout == "customized\n" * 2 + "trained\n", "once for farandole itself"
    assert "component, mean of ranks" in told.stderr and "forward" in told.stderr
    (rank,) = found["ranks"]
    assert len(rank["steps"]) == 12
    counted = calls(found)
    assert [counted[name] for name in ("forward", "backward", "optimizer", "evaluate")] == [12, 12, 12, 2]
    # Every batch sleeps 20 ms while it is read; evaluation is no part of a step.
    assert 12 * 0.02 <= rank["data_stall_s"] <= rank["total_s"]
    assert counted["next batch"] == 12 + 2, "batches, and the begin of an epoch"
    assert rank["comm_s"] == rank["wait_s"] == 0
    assert rank["phases"]["prepare"] >= 0.05 and [band["name"] for band in found["bands"]] == ["start", "prepare"]
    assert found["bands"][0]["start_s"] == 0 and rank["phases"]["start"] > 0.1, "Python and the imports of the script"
    assert min(rank["steps"]) >= 0.02


@pytest.mark.more
def test_ddp_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    _, found = observe(tmp_path, *run, env={"GLOO_SOCKET_IFNAME": "lo"})
    first, late = found["ranks"]
    assert (first["rank"], late["rank"]) == (0, 1) and found["missing_ranks"] == []
    assert len(first["steps"]) == len(late["steps"]) == 6
    # Rank 1 sleeps 50 ms before each step, for which rank 0 waits within backward.
    assert first["wait_s"] > 6 * 0.03 and first["exposed_s"] >= first["wait_s"]
    assert late["wait_s"] < first["wait_s"]
    assert first["comm_s"] > 0 and 0 <= found["residual_s"] < 1e-4
    counted = calls(found)
    assert counted["backward"] == counted["optimizer"] == 6
    assert counted["allreduce"] >= 12, "DDP's own, and those of the script"


@pytest.mark.parametrize(
    "backend", [pytest.param("torch", marks=pytest.mark.more), *(pytest.param(name, marks=pytest.mark.soak) for name in ("jax", "tensorflow"))]
)
def test_keras_fit(tmp_path: Path, backend: str) -> None:
    (tmp_path / "train.py").write_text(KERAS)
    told, found = observe(
        tmp_path, sys.executable, "train.py", env={"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    assert told.stdout.splitlines()[-1] == backend
    counted = calls(found)
    assert counted["framework run"] == 12 and counted["fit"] == 1 and counted["evaluate"] == 2
    (rank,) = found["ranks"]
    assert len(rank["steps"]) == 12
    unseen = backend == "tensorflow"
    assert counted.get("next batch") == (None if unseen else 12)
    assert (rank["data_stall_s"] is None) == unseen == ("data_stall_s" in rank["reasons"])
    assert (rank["forward_s"] is None) == (backend != "torch")
    inside = [counted.get(name) for name in ("forward", "backward", "optimizer")]
    assert inside == ([12, 12, 12] if backend == "torch" else [None] * 3), "what is compiled is one span"
    seconds = {row["name"]: row["seconds"] for row in found["components"]}
    assert seconds["callbacks"] >= 12 * 0.02


COMPILED = """
import torch
from torch._dynamo.utils import counters

plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
model = torch.compile(plain, backend="eager", fullgraph=True)
optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print(counters["stats"]["unique_graphs"])
"""


@pytest.mark.soak
def test_a_compiled_model_stays_one_graph(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COMPILED)
    told, found = observe(tmp_path, sys.executable, "train.py")
    assert told.stdout == "1\n"
    assert [calls(found)[name] for name in ("forward", "backward", "optimizer")] == [4, 4, 4]


def test_what_is_not_python_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "farandole", "observe", "--out", str(tmp_path / "seen"), "--"]
    told = subprocess.run([*command, "sh", "-c", "exit 3"], capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 3 and "nothing was seen" in told.stderr
    told = subprocess.run([*command, "no-such-program"], capture_output=True, text=True, timeout=30, check=False)
    assert told.returncode == 127 and "no-such-program" in told.stderr
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 2


STRAGGLER = """
import sys, time
import torch
import farandole.torch as hvd

hvd.init()
model = torch.nn.Linear(64, 64)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(8):
    if hvd.rank() == 1:
        time.sleep(0.1)
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
"""


def test_a_straggler_among_our_ranks_is_seen(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    options = ["--timeline", str(trace), "--power"]
    run_ranks(2, STRAGGLER, launcher="farandole", launcher_args=options, timeout=LIMIT_S)
    shown = [sys.executable, "-m", "farandole", "trace", "show", str(trace), "--json"]
    found = json.loads(subprocess.run(shown, capture_output=True, check=True, timeout=60).stdout)
    first, late = found["ranks"]
    assert [len(rank["steps"]) for rank in found["ranks"]] == [8, 8]
    # Rank 1 sleeps 100 ms before each step. When they begin, either may be late.
    assert median(first["step_wait_s"]) > 0.05 > median(late["step_wait_s"])
    assert first["exposed_s"] >= first["wait_s"] > 8 * 0.05
    counted = calls(found)
    assert [counted[name] for name in ("forward", "backward", "optimizer")] == [8, 8, 8]
    assert counted["allreduce"] >= 8 and counted["broadcast"] >= 1
    assert all(rank["phases"]["start"] > 0.3 and rank["phases"]["train"] == rank["training_s"] for rank in found["ranks"])
    (node,) = found["power"]
    assert node["window"] == "init to end" and "from init() to the end" in node["window_reason"]
    assert node["provenance"] in ("modelled", "measured-node", "measured-component")
