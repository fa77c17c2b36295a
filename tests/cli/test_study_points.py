"""`farandole study strong|weak|batch|lr` and study files, as a user types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from farandole.data.make import make
from farandole.workloads.finding import tables_of
from ranktest.processes import wait_until
from studycommand import children, farandole, stopped

# A program of the user's: it marks a phase, leaves figures, and fails for a batch of 300.
PROGRAM = """
import json, os, sys, time
from farandole.observe import energy

ranks, batch = int(sys.argv[1]), int(sys.argv[2])
with energy("load"):
    time.sleep(0.2)
if batch == 300:
    sys.exit("farandole: a batch of 300 does not fit")
with open(os.environ["FARANDOLE_FIGURES"], "w") as file:
    json.dump({"loss": 1 / batch, "test_accuracy": 0.9, "samples": 100}, file)
"""


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def quiet(result: dict[str, Any]) -> list[str]:
    """Its marks; what else runs on this machine is no matter of the tests."""
    return [mark for mark in result["marks"] if mark != "busy machine"]


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    return f"{sys.executable} train.py {{ranks}} {{batch_size}}"


def test_a_program_of_the_user_s_over_batches(tmp_path: Path, program: str) -> None:
    words = ("study", "batch", "--command", program, "--batches", "20,300", "--ranks", "1", "--repeats", "1", "--out", "s")
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 1, "a point has failed"
    assert "1/2 1 rank, batch_size=20: " in told.stderr and "left" in told.stderr
    assert "2/2 1 rank, batch_size=300: FAILED" in told.stderr
    good, bad = results(tmp_path / "s")
    assert (good["status"], bad["status"]) == ("ok", "failed")
    assert bad["reason"] == "exit code 1: farandole: a batch of 300 does not fit"
    assert bad["reason"] in told.stdout and f"s/{bad['run']}/console.txt" in told.stdout
    assert "a batch of 300 does not fit" in (tmp_path / "s" / bad["run"] / "console.txt").read_text()
    figures = good["figures"]
    assert figures["loss"] == 0.05 and 0.2 <= figures["load_s"] <= figures["total_s"] and figures["cpu_s"] > 0
    assert figures["power_w"] > 0 and figures["energy_per_sample_j"] == pytest.approx(figures["energy_j"] / 100)
    modelled = figures["power_provenance"] == "modelled"  # unless this machine has sensors
    assert quiet(good) == ["modelled power"] * modelled
    power = json.loads((tmp_path / "s" / good["run"] / "power.json").read_text())
    assert [phase["name"] for phase in power["phases"]] == ["load"]
    assert power["whole"]["total"]["energy_j"] == figures["energy_j"]
    assert ("~ modelled power" in told.stdout) == modelled and "One configuration: time " in told.stdout

    again = farandole(*words, cwd=tmp_path)
    assert "1 of 2 points has a result" in again.stderr
    assert [one["run"] for one in results(tmp_path / "s")][2:] == [f"{bad['run']}-2"], "only what failed is run again"

    other = farandole(*[word.replace("train.py", "train.py {x}") for word in words], "--set", "x=1", cwd=tmp_path)
    assert other.returncode == 1 and "holds another study" in other.stderr
    dry = farandole(*words, "--dry-run", cwd=tmp_path)
    assert "2 points, 1 has a result" in dry.stdout and "from points that have run here" in dry.stdout


# A plain script: it knows nothing of farandole, and sleeps 20 ms for every batch of 4.
TORCH = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 24
    def __getitem__(self, at):
        time.sleep(0.005)
        return torch.full((64,), float(at)), torch.zeros(1)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.more
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_parts_of_a_torch_script_s_steps_are_seen_from_outside(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TORCH)
    told = farandole("study", "strong", "--command", f"{sys.executable} train.py", "--ranks", "1", "--repeats", "1", "--no-power", "--out", "s", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    (found,) = results(tmp_path / "s")
    figures = found["figures"]
    parts = [figures[name] for name in ("data_stall_s", "forward_s", "backward_s", "optimizer_s")]
    assert min(parts) > 0 and sum(parts) <= figures["train_s"] * 1.01 <= figures["total_s"]
    assert figures["data_stall_s"] >= 6 * 0.02, "the time in which batches are read"
    assert figures["comm_s"] == figures["wait_s"] == 0


@pytest.mark.soak  # all that is compiled, once more
def test_no_point_waits_for_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    program = "import json, os, pathlib; found = len(list(pathlib.Path('kept').rglob('*.nbi'))); "
    program += "json.dump({'loss': found}, open(os.environ['FARANDOLE_FIGURES'], 'w'))"
    (tmp_path / "train.py").write_text(program)
    words = ("study", "strong", "--command", f"{sys.executable} train.py {{ranks}}", "--ranks", "1,2", "--repeats", "1", "--out", "s", "--no-power")
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    alone, two = (one["figures"]["loss"] for one in results(tmp_path / "s"))
    assert alone == 0 and two > 0, "what two ranks add up with is compiled before they start"


def test_tables_of_a_folder(tmp_path: Path) -> None:
    assert farandole("study", "import", "summit-2019-table2", "--out", "paper", cwd=tmp_path).returncode == 0
    for form, shown in (("text", "21.8"), ("markdown", "| 384 |"), ("csv", "epoch_s,"), ("latex", r"\hline")):
        told = farandole("study", "table", "paper", "--format", form, cwd=tmp_path)
        assert told.returncode == 0 and shown in told.stdout, told.stderr
    told = farandole("study", "table", "paper", "--json", cwd=tmp_path)
    assert len(json.loads(told.stdout)["results"]) == 16
    again = farandole("study", "import", "summit-2019-table2", "--out", "paper", cwd=tmp_path)
    assert again.returncode == 1 and "choose another --out" in again.stderr


def test_whoever_reads_a_table_may_leave(tmp_path: Path) -> None:
    assert farandole("study", "import", "summit-2019-table2", "--out", "paper", cwd=tmp_path).returncode == 0
    for unbuffered in ({}, {"PYTHONUNBUFFERED": "1"}):
        reader, writer = os.pipe()
        os.close(reader)
        words = [sys.executable, "-m", "farandole", "study", "table", "paper"]
        told = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, env=os.environ | unbuffered)
        os.close(writer)
        assert (told.returncode, told.stderr) == (128 + signal.SIGPIPE, b"")


# A program that starts two processes, one of them in a session of its own, which know nothing of each other or of signals, and waits for them.
FORKING = """
import pathlib, subprocess, sys
workers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=away) for away in (False, True)]
pathlib.Path("pids").write_text(" ".join(str(worker.pid) for worker in workers))
for worker in workers:
    worker.wait()
"""
# The same, with a handler that takes a second and needs them.
SAVING = FORKING.replace("\npathlib", """
import signal, time
def save(number, frame):
    time.sleep(1)
    pathlib.Path("saved").write_text(str([worker.poll() for worker in workers]))
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
pathlib""")


def state(pid: int) -> str:
    """A letter of /proc; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def alive(pid: int) -> bool:
    return state(pid) not in ("", "Z")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("script", [FORKING, SAVING], ids=["plain", "saving"])
def test_a_signal_to_the_study_alone_ends_all_of_its_program(tmp_path: Path, number: int, script: str) -> None:
    (tmp_path / "fork.py").write_text(script)
    words = ["study", "strong", "--command", f"{sys.executable} fork.py {{ranks}}", "--ranks", "1", "--out", "s", "--no-power"]
    process = subprocess.Popen([sys.executable, "-m", "farandole", *words], cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    workers: list[int] = []
    try:
        assert wait_until(lambda: len((tmp_path / "pids").read_text().split()) == 2 if (tmp_path / "pids").exists() else False, 60)
        workers = [int(word) for word in (tmp_path / "pids").read_text().split()]
        process.send_signal(number)
        assert process.wait(40) == 128 + number
        assert not [worker for worker in workers if alive(worker)]
        if script is SAVING and number != signal.SIGINT:
            assert (tmp_path / "saved").read_text() == "[None, None]", "its workers lived until it had saved"
    finally:
        process.kill()
        process.wait()
        for worker in workers:
            if alive(worker):
                os.kill(worker, signal.SIGKILL)


def test_ctrl_z_stops_the_program_as_well(tmp_path: Path) -> None:
    words = ["study", "strong", "--command", "sleep 50 {ranks}", "--ranks", "1", "--out", "s", "--no-power"]
    process = subprocess.Popen([sys.executable, "-m", "farandole", *words], cwd=tmp_path, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: bool(list(tmp_path.glob("s/points/*/console.txt"))) and bool(children(process.pid)), 60)
        caught = Path(f"/proc/{process.pid}/status")
        assert wait_until(lambda: int(caught.read_text().split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTSTP - 1) & 1 == 1, 20)
        (program,) = children(process.pid)
        process.send_signal(signal.SIGTSTP)
        assert wait_until(lambda: state(process.pid) == state(program) == "T", 20)
        process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: "T" not in (state(process.pid), state(program)), 20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 128 + signal.SIGTERM and not alive(program)
    finally:
        process.kill()
        process.wait()


def test_stopped_and_typed_again(tmp_path: Path) -> None:
    words = ["study", "strong", "--command", "sleep 30 {ranks}", "--ranks", "1", "--out", "s", "--no-power"]

    def runs(_: int) -> bool:
        if not list(tmp_path.glob("s/points/*/console.txt")):
            return False
        busy = farandole(*words, cwd=tmp_path)
        assert busy.returncode == 1 and "another study is writing into s" in busy.stderr
        return True

    code, said = stopped(*words, cwd=tmp_path, when=runs)
    assert code == 130
    assert "type the same again to go on" in said
    assert not (tmp_path / "s" / "results.jsonl").exists()


def test_ctrl_c_ends_ranks_that_were_launched(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, pathlib, time\npathlib.Path(f'{os.getpid()}.pid').touch()\ntime.sleep(100)\n")
    words = ["study", "strong", "--command", f"{sys.executable} train.py", "--ranks", "2", "--out", "s", "--no-power"]
    code, said = stopped(*words, cwd=tmp_path, when=lambda _: len(list(tmp_path.glob("*.pid"))) == 2)
    assert code == 130 and "type the same again to go on" in said
    assert not [file.stem for file in tmp_path.glob("*.pid") if alive(int(file.stem))]


def test_jobs_typed_again_are_those_without_a_result(tmp_path: Path) -> None:
    command = "sh -c 'test {ranks} = 1 || sleep 60'"
    words = ("study", "strong", "--command", command, "--ranks", "1,2", "--repeats", "1", "--submit", "sbatch", "--no-power", "--out", "s")
    assert "2 scripts in s/scripts" in farandole(*words, cwd=tmp_path).stdout
    plan = json.loads((tmp_path / "s" / "study.json").read_text())
    short, long = (f"{point['key']}-0" for point in plan["points"])
    (tmp_path / "s" / "scripts" / f"{long}-7.out").write_text("what a job has said")
    script = ("bash", f"s/scripts/{short}.sbatch")
    assert subprocess.run(script, cwd=tmp_path, timeout=60, env=os.environ | {"SLURM_JOB_ID": "7"}).returncode == 0

    job = subprocess.Popen(("bash", f"s/scripts/{long}.sbatch"), cwd=tmp_path, start_new_session=True)
    try:
        console = tmp_path / "s" / "points" / long / "console.txt"
        assert wait_until(lambda: console.exists() and "sleep 60" in console.read_text(), 30)
        job.send_signal(signal.SIGTERM)  # as at a time limit
        assert job.wait(30) == 1
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()

    again = farandole(*words, cwd=tmp_path)
    assert "1 script in s/scripts" in again.stdout, again.stderr
    assert {file.name for file in (tmp_path / "s" / "scripts").iterdir()} == {f"{long}.sbatch", f"{long}-7.out"}
    good, bad = results(tmp_path / "s")
    assert (good["status"], good["job"], bad["status"]) == ("ok", {"system": "slurm", "id": "7"}, "failed")
    assert good["made_with"]["command"] == bad["made_with"]["command"] == plan["command"]
    assert bad["reason"].startswith("ended by the batch system (SIGTERM)") and bad["wall_s"] < 60
    assert "sleep 60" in (tmp_path / "s" / bad["run"] / "console.txt").read_text()


def test_more_ranks_than_cores_are_marked(tmp_path: Path) -> None:
    words = ("study", "weak", "--command", "true {ranks}", "--ranks", "1,9999", "--repeats", "1", "--out", "s", "--no-power")
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "warning: 9999 x 1 ranks x threads on" in told.stderr and "oversubscribed" in told.stderr
    assert [quiet(one) for one in results(tmp_path / "s")] == [[], ["oversubscribed"]]
    assert "oversubscribed: 9999 ranks" in told.stdout and "9999 ranks shared cores (oversubscribed)" in told.stdout
    assert results(tmp_path / "s")[0]["reasons"]["energy_j"] == "power was not sampled (--no-power)"


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_a_benchmark_from_a_study_file(tmp_path: Path) -> None:
    make(tables_of("nt3"), tmp_path / "data", rows=40, features=60, threads=1)
    (tmp_path / "my.toml").write_text(
        """
        kind = "strong"
        benchmark = "nt3"
        preset = "test"
        [settings]
        data_dir = "data"
        epochs = 3
        conv = [4, 5, 1]
        pool = [4]
        dense = [8]
        batch_size = 10
        [axes]
        emulate_ranks = [3]
        """
    )
    told = farandole("study", "my.toml", "--scalars", "tensorboard", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    folder = tmp_path / "out" / "study-my"
    (found,) = results(folder)
    assert found["marks"][0] == "emulated ranks"
    figures = found["figures"]
    assert figures["local_batch"] == 10 and figures["global_batch"] == 30 and figures["epochs"] == 1
    assert 0 <= figures["test_accuracy"] <= 1 and figures["parameters"] > 0
    phases = [figures[f"{name}_s"] for name in ("start", "load", "preprocess", "build", "broadcast", "train", "evaluate", "save")]
    assert sum(phases) == pytest.approx(figures["total_s"], rel=0.2)
    run = folder / found["run"]
    for name in ("run.json", "history.csv", "log.txt", "power.json", "console.txt", "timeline.json"):
        assert (run / name).exists(), name
    assert "there is no power.json" not in (run / "report.html").read_text(), "the run's own page, which was made before"
    assert '"name":"POWER"' in (run / "timeline.json").read_text()
    assert list(run.glob("events.out.tfevents.*"))
    plan = json.loads((folder / "study.json").read_text())
    assert plan["points"][0]["key"] == found["key"] and plan["benchmark"] == "nt3" and plan["environment"]["cores"]
    assert plan["command"] == "farandole study my.toml --scalars tensorboard"


SMALL = ["--set", "data_dir=data", "--set", "epochs=2", "--set", "conv=[4,5,1]", "--set", "pool=[4]", "--set", "dense=[8]", "--set", "batch_size=10"]


@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_a_scaling_study_gives_every_rank_the_same_threads_and_the_same_data(tmp_path: Path) -> None:
    make(tables_of("nt3"), tmp_path / "data", rows=40, features=60, threads=1)
    words = ["study", "strong", "nt3", "--preset", "test", "--ranks", "1,2", "--repeats", "1", *SMALL, "--out", "s", "--no-power"]
    told = farandole(*words, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    one, two = results(tmp_path / "s")
    each = max(1, len(os.sched_getaffinity(0)) // 2)
    for found in (one, two):
        record = json.loads((tmp_path / "s" / found["run"] / "run.json").read_text())
        assert found["settings"]["threads"] == found["figures"]["threads"] == record["threads"] == each
    assert (one["settings"]["ranks"], two["settings"]["ranks"]) == (1, 2) and one["settings"]["data"] == two["settings"]["data"]
    (table,) = [line for line in told.stdout.splitlines() if line.startswith("ranks ") and "speedup" in line]
    assert "threads" in table and "efficiency" in told.stdout

    again = farandole(*words, "--dry-run", cwd=tmp_path)
    assert "2 points, 2 have a result already" in again.stdout
    shutil.rmtree(tmp_path / "data")
    make(tables_of("nt3"), tmp_path / "data", rows=48, features=60, threads=1)
    other = farandole(*words, "--dry-run", cwd=tmp_path)
    assert "2 points, 0 have a result already" in other.stdout, "of other data under the same name"


@pytest.mark.more
@pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed")
def test_no_point_goes_on_from_another_s_checkpoints(tmp_path: Path) -> None:
    make(tables_of("nt3"), tmp_path / "data", rows=40, features=60, threads=1)
    words = ["study", "strong", "nt3", "--preset", "test", "--ranks", "1", "--repeats", "2", *SMALL, "--out", "s", "--no-power"]
    told = farandole(*words, "--set", "checkpoint_dir=kept", "--set", "checkpoint_every=1", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    found = results(tmp_path / "s")
    assert {folder.name for folder in (tmp_path / "kept").iterdir()} == {Path(one["run"]).name for one in found}
    assert [one["figures"]["epochs"] for one in found] == [2, 2], "each has trained from the beginning"
    for one in found:
        record = json.loads((tmp_path / "s" / one["run"] / "run.json").read_text())
        assert not record["checkpoints"]["resumed_from"] and list((tmp_path / "kept" / Path(one["run"]).name).iterdir())
