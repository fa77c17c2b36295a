"""`farandole power`: any command's energy, its exit code, and figures that say how they are known."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from powertree import Machine, steady

# Moves a counter by 30 J in 2 s, in two phases.
SPENDS = """
import sys, time
import farandole

counter = sys.argv[1]
for name, joules in (("load", 10), ("train", 20)):
    with farandole.observe.energy(name):
        first, began = int(open(counter).read()), time.monotonic()
        share = 0.0
        while share < 1.0:
            share = min((time.monotonic() - began) / 1.0, 1.0)
            with open(counter, "r+") as file:
                file.write(f"{first + round(joules * share * 1e6):010d}")
            time.sleep(0.002)
time.sleep(0.15)  # so that what was spent is read before the end
sys.exit(7)
"""


def power(*words: str, root: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "FARANDOLE_POWER_ROOT": str(root)}
    return subprocess.run(
        [sys.executable, "-m", "farandole", "power", *words],
        capture_output=True, text=True, timeout=60, check=False, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    zone = Machine(tmp_path / "machine").rapl("0", "package-0", steady(0.0))
    zone.path.write_text("1000000000")
    return zone.path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "machine"


@pytest.fixture
def modelled(tmp_path: Path) -> Path:
    Machine(tmp_path / "bare").proc()
    return tmp_path / "bare"


def test_a_command_with_its_phases(tmp_path: Path, counter: Path, root: Path) -> None:
    report, trace = tmp_path / "power.json", tmp_path / "trace.jsonl"
    told = power(
        "--json", str(report), "--record", str(trace), "--interval", "0.05", "--",
        sys.executable, "-c", SPENDS, str(counter), root=root,
    )  # fmt: skip
    assert told.returncode == 7, told.stderr
    assert told.stdout == ""
    figures = json.loads(report.read_text())
    assert figures["exit_code"] == 7
    assert figures["whole"]["total"]["seen_j"] == pytest.approx(30.0, rel=0.005)
    assert figures["whole"]["total"]["provenance"] == "measured-component"
    phases = {phase["name"]: phase["total"]["energy_j"] for phase in figures["phases"]}
    # Seen from outside, phases begin and end between two samples, and this machine may be busy.
    assert phases == {"load": pytest.approx(10.0, rel=0.25), "train": pytest.approx(20.0, rel=0.25)}
    assert 0 < figures["sampler"]["share_of_a_core"] < 1
    assert figures["wall_s"] > 2.0 and 0 < figures["cpu_s"] < figures["wall_s"]
    for row in ("command", "load", "train", "RAPL package-0", "of a core"):
        assert row in told.stderr

    again = power("--replay", str(trace), root=root)
    assert again.returncode == 0
    assert again.stderr.splitlines()[1:] == told.stderr.splitlines()
    assert again.stderr.startswith(f"replayed from {trace}")


def test_phases_of_ranks(tmp_path: Path, counter: Path, root: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import farandole\nfarandole.init()\n" + SPENDS.replace("sys.exit(7)", ""))
    report = tmp_path / "power.json"
    launch = [sys.executable, "-m", "farandole", "launch", "-n", "2", "--", sys.executable, str(script), str(counter)]
    told = power("--json", str(report), "--", *launch, root=root)
    assert told.returncode == 0, told.stderr
    figures = json.loads(report.read_text())
    phases = {phase["name"]: phase for phase in figures["phases"]}
    assert {name: phase["times"] for name, phase in phases.items()} == {"ranks": 1, "start": 1, "load": 1, "train": 1}, (
        "only the first rank of the node speaks for it"
    )
    assert 2.0 < phases["ranks"]["duration_s"] < figures["wall_s"], "without the launcher's own start and end"
    assert figures["phase_power_w"] == {name: phases[name]["total"]["mean_w"] for name in ("start", "load", "train")}
    assert (figures["whole"]["name"], figures["whole"]["total"]["window"]) == ("command", "whole job")


def test_modelled_power_says_so(tmp_path: Path, modelled: Path) -> None:
    report = tmp_path / "power.json"
    told = power("--idle", "0.3", "--json", str(report), "--", "sleep", "0.3", root=modelled)
    assert told.returncode == 0, told.stderr
    assert "power MODELLED, not measured" in told.stderr.splitlines()[0]
    figures = json.loads(report.read_text())
    for found in (figures["whole"]["total"], figures["whole"]["parts"]["cpu"], figures["idle"]["total"]):
        assert found["provenance"] == "modelled" and found["modelled"] is True
    assert "measured-" not in told.stderr and "measured-" not in report.read_text()


def test_a_killed_command_ends_as_in_a_shell(counter: Path, root: Path) -> None:
    told = power("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)", root=root)
    assert told.returncode == 128 + 9
    assert "command" in told.stderr


def test_sigterm_reaches_the_command_and_the_table_is_printed(counter: Path, root: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    words = [sys.executable, "-m", "farandole", "power", "--", sys.executable, "-c", script]
    running = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={"PATH": "/usr/bin:/bin", "FARANDOLE_POWER_ROOT": str(root)},
    )  # fmt: skip
    try:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 3
    assert "sampler:" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "no command was given: type e.g. farandole power -- python train.py"),
        (["--", "no-such-program"], 127, "no-such-program: No such file"),
        (["--", "/"], 126, "/: Permission denied"),
        (["--interval", "0", "--", "true"], 2, "a sample every 0 s: expected 0.001 to"),
        (["--idle", "nan", "--", "true"], 2, "--idle nan: expected seconds"),
        (["--idle", "-1", "--", "true"], 2, "--idle -1: expected seconds"),
        (["--json", "no/such/x.json", "--", "true"], 2, "--json no/such/x.json: there is no folder"),
        (["--replay", "none.jsonl"], 1, "power trace none.jsonl: cannot be read"),
        (["--replay", "x", "--", "true"], 2, "--replay runs nothing: leave out true"),
    ],
)
def test_errors_say_what_to_type(counter: Path, root: Path, words: list[str], code: int, said: str) -> None:
    told = power(*words, root=root)
    assert (told.returncode, said in told.stderr) == (code, True), told.stderr
    assert "Traceback" not in told.stderr


def test_help_teaches(root: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "farandole", "power", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    for words in ("farandole power -- python train.py", "modelled", "--idle", "--json", 'energy("train")'):
        assert words in told.stdout
