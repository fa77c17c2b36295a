"""Points of a study: what is run, under which name, and what is refused before anything runs."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import main
from farandole.data.make import make
from farandole.errors import SettingsError
from farandole.launch.allocation import allocated_hosts
from farandole.study.estimate import Estimate
from farandole.study.folder import StudyFolder
from farandole.study.pointrun import command_words, marks_of
from farandole.study.points import Point, is_here, run_settings, run_words, usable_cores
from farandole.study.running import write_plan
from farandole.study.scalars import export
from farandole.study.settings import StudySettings, read_toml
from farandole.workloads.nt3 import FILES


def study(**given: Any) -> StudySettings:
    return StudySettings(**{"kind": "strong", "benchmark": "nt3", "preset": "test", "axes": {"ranks": [1, 2]}, "repeats": 1, **given})


@pytest.fixture
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything is: studies and data are below out/."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_every_combination_and_repeats_last() -> None:
    points = study(axes={"ranks": [1, 2], "seed": [3, 4]}, repeats=2).points()
    told = [(p.repeat, p.settings["ranks"], p.settings["seed"]) for p in points]
    assert told == [(r, n, s) for r in (0, 1) for n in (1, 2) for s in (3, 4)]
    assert len({point.name for point in points}) == 8 and len({point.key for point in points}) == 4


def test_a_point_tells_the_defaults_that_matter() -> None:
    settings = study().points()[0].settings
    expected = {
        "benchmark": "nt3", "preset": "test", "framework": "torch", "ranks": 1, "nodes": 1, "batch_size": 20,
        "rate": 0.001, "seed": 2017, "epochs": 16, "work": "strong", "parallel": "epochs", "lr_scaling": "linear",
    }  # fmt: skip
    assert expected.items() <= settings.items()


def test_the_key_is_of_the_settings_and_of_nothing_else() -> None:
    given = study(settings={"epochs": 16, "threads": 1}).points()[1]
    assert given.key == study(axes={"ranks": [2]}, title="another", threads=1).points()[0].key, "16 epochs are the default"
    assert given.key != study(settings={"epochs": 32}, threads=1).points()[1].key
    assert given.key != study(threads=2).points()[1].key, "with other threads it is another measurement"
    assert len(given.key) == 12 and int(given.key, 16) >= 0


def test_the_run_gets_exactly_these_settings() -> None:
    fixed = {"conv": [4, 5, 1], "pool": [4], "learning_rate": 0.5, "shuffle": True, "optimizer": "adam", "data_dir": "d"}
    (point,) = study(kind="weak", axes={"emulate_ranks": [4]}, settings={**fixed, "ranks": 2}, threads=1).points()
    words = " ".join(command_words(point.settings, Path("points/x")))
    for told in (
        "farandole run nt3 ", " --conv 4 5 1 ", " --pool 4 ", " --learning-rate 0.5 ", " --optimizer adam ", " --data-dir d ",
        " --emulate-ranks 4 ", " --weak ", " --threads 1 ", " --output-dir points/x --no-page -n 2",
    ):  # fmt: skip
        assert told in words
    run = run_settings(point.settings)
    assert (run.work, run.emulate_ranks, str(run.data_dir)) == ("weak", 4, "d")


def test_names_that_a_run_takes_for_others() -> None:
    (point,) = study(axes={"ranks": [1]}, settings={"drop": 0.2, "ckpt_save_interval": 5, "ckpt_save_best": True}).points()
    assert point.settings["dropout"] == 0.2 and "drop" not in point.settings
    assert (point.settings["checkpoint_every"], point.settings["checkpoint_best"]) == ("5", "val_loss")
    one, two = study(benchmark="p1b2", axes={"ranks": [1], "penalty": [0.1, 0.2]}).points()
    assert (one.settings["reg_l2"], two.settings["reg_l2"]) == (0.1, 0.2)
    (plain,) = study(axes={"ranks": [1]}, settings={"checkpoint_every": 2}).points()
    assert plain.settings["checkpoint_every"] == "2"


def test_a_config_file_is_what_is_in_it(folder: Path) -> None:
    file = folder / "model.txt"
    file.write_text("[Global_Params]\ndrop = 0.3\nbatch_size = 40\ntrain_data = 'nt_train2.csv'\nsave_path = 'x'\nverbose = 1\n")
    (point,) = study(axes={"ranks": [1]}, settings={"config_file": str(file), "batch_size": 10}).points()
    assert (point.settings["dropout"], point.settings["batch_size"]) == (0.3, 10)
    assert not {"config_file", "train_data", "output_dir", "verbose"} & {*point.settings}
    assert " --dropout 0.3" in " ".join(run_words(point.settings)) and " --batch-size 10 " in " ".join(run_words(point.settings))


def test_no_rate_is_the_optimizer_s_and_not_the_preset_s() -> None:
    (point,) = study(axes={"ranks": [1]}, settings={"rate": None}).points()
    assert point.settings["rate"] is None and run_settings(point.settings).parameters.learning_rate is None
    assert " --learning-rate None" in " ".join(run_words(point.settings))


# Threads


def test_every_rank_of_every_point_has_as_many_threads() -> None:
    each = max(1, usable_cores() // 2)
    assert {point.settings["threads"] for point in study().points()} == {each}
    assert {point.settings["threads"] for point in study(axes={"ranks": [1]}).points()} == {usable_cores()}
    divided = study(axes={"ranks": [1, 2 * usable_cores()]}, ranks_per_node=usable_cores())
    assert {point.settings["threads"] for point in divided.points()} == {1}, "the most ranks on one node"
    assert {point.settings["threads"] for point in study(threads=3).points()} == {3}
    own = study(benchmark="", preset="demo", command="python train.py")
    assert {point.settings["threads"] for point in own.points()} == {each}, "of programs of the user's, too"
    varied = study(axes={"ranks": [1], "threads": [1, 2]}).points()
    assert [point.settings["threads"] for point in varied] == [1, 2]


@pytest.mark.parametrize("words", [["--ranks", "1x2,2x1"], ["FILE"]])
def test_ranks_and_threads_may_vary_in_pairs(folder: Path, words: list[str]) -> None:
    """One process with all cores against several."""
    (folder / "my.toml").write_text("kind = 'strong'\ncommand = 'train'\nout = 's'\n[axes]\n'ranks,threads' = [[1, 2], [2, 1]]\n")
    what = ["my.toml"] if words == ["FILE"] else ["strong", "--command", "train", *words, "--out", "s"]
    assert main(["study", *what, "--repeats", "1", "--submit", "sbatch"]) == 0
    points = StudyFolder(folder / "s").plan()["points"]
    assert [(point["settings"]["ranks"], point["settings"]["threads"]) for point in points] == [(1, 2), (2, 1)]
    assert command_words(points[0]["settings"], Path())[3:] == ["launch", "-n", "1", "--threads", "2", "--", "train"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"threads": 0}, "threads=0: expected a whole number from 1 on, or auto"),
        ({"threads": "many"}, "threads='many': expected"),
        ({"axes": {"ranks,threads": [[1, 2], 2]}}, r"axis ranks,threads: every value has to be a list of 2"),
        ({"axes": {"ranks,threads": [[1, 2]], "ranks": [1]}}, "a setting is varied twice"),
        ({"axes": {"ranks,threads": [[1, 2]]}, "settings": {"threads": 1}}, "threads: fixed and varied at once"),
    ],
)
def test_threads_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        study(**given).points()


def test_as_many_ranks_emulate_others_as_divide_them(one_core: None) -> None:
    found = study(axes={"emulate_ranks": [1, 2, 8]}, settings={"ranks": "auto"}).points()
    assert [point.settings["ranks"] for point in found] == [1, 1, 1]
    with pytest.raises(SettingsError, match="whole numbers from 1"):
        study(kind="batch", axes={"batch_size": [1]}, settings={"ranks": "auto"}).points()


def test_another_machine_s_cores_make_no_other_points() -> None:
    def auto() -> list[Point]:
        return study(axes={"emulate_ranks": [2, 8]}, settings={"ranks": "auto"}, threads=1).points()

    many, cores = auto(), os.sched_getaffinity(0)
    assert [point.settings["ranks"] for point in many] == [max(n for n in (1, 2, 4, 8) if n <= min(len(cores), of)) for of in (2, 8)]
    os.sched_setaffinity(0, {min(cores)})
    try:
        few = auto()
    finally:
        os.sched_setaffinity(0, cores)
    assert [point.settings["ranks"] for point in few] == [1, 1]
    assert [point.key for point in few] == [point.key for point in many]
    assert few[0].key != study(axes={"emulate_ranks": [2]}, settings={"ranks": 1}, threads=1).points()[0].key, "asked for by number"


# Data


def test_other_data_in_the_same_folder_makes_another_point(folder: Path) -> None:
    def of() -> Point:
        (point,) = study(axes={"ranks": [1]}, settings={"data_dir": "data"}).points()
        return point

    make(FILES, folder / "data", rows=32, features=60)
    first, again = of(), of()
    assert first.key == again.key
    plan = StudyFolder(folder / "s")
    write_plan(study(axes={"ranks": [1]}, settings={"data_dir": "data"}), plan, ["study"])
    plan.append({"schema": 2, "study": "strong", **first.as_dict(), "status": "ok", "figures": {"total_s": 1.0}})
    assert plan.missing([again]) == []
    shutil.rmtree(folder / "data")
    make(FILES, folder / "data", rows=48, features=60)
    assert of().key != first.key and plan.missing([of()]), "measured anew"


def test_data_is_known_by_what_it_is_and_not_by_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    for name in ("here", "there"):
        (folder / name).mkdir()
        monkeypatch.chdir(folder / name)
        before = study(axes={"ranks": [1]}).points()[0]
        make(FILES, Path("out/data/nt3-test"), preset="test")
        keys += [before.key, study(axes={"ranks": [1]}).points()[0].key]
    assert len({*keys}) == 1, "also before the files of a preset are made"


# Repeats

PAPER: dict[str, Any] = {"preset": "paper", "settings": {"make_data": True}}


@pytest.mark.parametrize(
    ("given", "repeats"),
    [
        ({}, 3), (PAPER, 1), ({"axes": {"ranks": [1], "seed": [1, 2]}}, 1), ({"axes": {"emulate_ranks": [4]}}, 1),
        ({**PAPER, "repeats": 2}, 2),
    ],
)  # fmt: skip
def test_what_is_quick_is_repeated(given: dict[str, Any], repeats: int) -> None:
    assert {point.repeat for point in study(**{"repeats": 0, **given}).points()} == {*range(repeats)}


def test_a_study_that_goes_on_keeps_its_repeats(folder: Path) -> None:
    asked = {"benchmark": "", "command": "x {ranks}", "out": folder / "s"}
    write_plan(study(**asked, repeats=2), StudyFolder(folder / "s"), ["study"])
    assert {point.repeat for point in study(**asked, repeats=0).points()} == {0, 1}


# Hosts and nodes


def test_a_program_may_spread_its_ranks_over_nodes_itself() -> None:
    (point,) = study(benchmark="", command="srun -n {ranks} python x", axes={"ranks": [4]}, ranks_per_node=2).points()
    assert point.settings["nodes"] == 2


def test_several_nodes_are_reached_through_the_launcher() -> None:
    (point,) = study(axes={"ranks": [4]}, ranks_per_node=2, threads=1).points()
    words = command_words(point.settings, Path("here"))
    assert point.settings["nodes"] == 2
    assert words[2:9] == ["farandole", "launch", "-n", "4", "--threads", "1", "--timeline"]
    assert "-n" not in words[words.index("run") :]


def test_hosts_are_filled_one_after_the_other() -> None:
    asked = study(axes={"ranks": [1, 2, 4]}, hosts="a:1,b:2,c:1")
    points = asked.points()
    assert [point.settings["nodes"] for point in points] == [1, 2, 3]
    assert command_words(points[2].settings, Path("here"), asked.hosts)[-4:] == ["-n", "4", "--hosts", "a:1,b:2,c:1"]
    own = command_words({"command": "python train.py", "ranks": 3, "nodes": 2}, Path(), asked.hosts)
    assert own[3:] == ["launch", "-n", "3", "--hosts", "a:1,b:2,c:1", "--", "python", "train.py"]


def test_on_other_hosts_points_are_others() -> None:
    def of(hosts: str) -> Point:
        (point,) = study(axes={"ranks": [2]}, settings={"epochs": 4}, hosts=hosts, threads=1).points()
        return point

    here, there = of(""), of("a:1,b:1")
    assert "hosts" not in here.settings and there.settings == {**here.settings, "nodes": 2, "hosts": "a:1,b:1"}
    assert there.key == of("a, b").key, "one slot, however it is written"
    assert len({one.key for one in (here, there, of("a:1,c:1"), of("a:1,b:2"), of("a:2,b:2"))}) == 5
    own = StudySettings(kind="strong", command="train", axes={"ranks": [2]}, hosts="a:1,b:1", threads=1, repeats=1).points()[0]
    assert own.settings == {"ranks": 2, "nodes": 2, "hosts": "a:1,b:1", "command": "train", "threads": 1}
    varied = StudySettings(kind="strong", command="mpiexec -n {ranks} -hosts {hosts} x", axes={"ranks": [2], "hosts": ["a", "b"]}, repeats=1)
    assert [point.settings["hosts"] for point in varied.points()] == ["a", "b"], "which a program may take itself"
    assert Estimate().seconds([there]) == Estimate().seconds([here])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"settings": {"hosts": "a:4"}}, "hosts: not to be given as a setting"),
        ({"hosts": "a:1,b:2"}, "4 ranks, and a:1,b:2 has room for 3"),
        ({"hosts": "a:4", "ranks_per_node": 2}, "leave the other out"),
        ({"hosts": "a:x"}, "whole number from 1"),
        ({"hosts": "a:4", "benchmark": "", "command": "mpiexec -n {ranks} x"}, "it has to name the hosts"),
        (
            {"ranks_per_node": 2, "benchmark": "", "command": "torchrun --nproc-per-node {ranks} x"},
            r"ranks-per-node and \{ranks\} in --command: .*Begin it with srun, .*leave .* out.* e.g. --command 'python train.py'",
        ),
    ],
)
def test_hosts_that_cannot_take_the_ranks(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        study(axes={"ranks": [4]}, **given).points()


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a dry run says, of a minute a point."""
    assert main(["study", "strong", *words, "--repeats", "1", "--dry-run"]) == 0
    return capsys.readouterr().out


def test_ranks_are_divided_among_nodes_only_where_there_are_nodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    divided = ("--command", "python train.py", "--ranks", "2", "--ranks-per-node", "1")
    assert main(["study", "strong", *divided, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "--ranks-per-node 1: there are no nodes" in said and "--submit sbatch" in said and "--hosts a:2,b:2" in said
    assert "0.033 node-hours" in planned(capsys, *divided, "--submit", "sbatch")
    (folder / "nodes").write_text("a\nb\n")
    monkeypatch.setenv("PBS_NODEFILE", str(folder / "nodes"))
    assert "0.033 node-hours" in planned(capsys, *divided)


def test_in_an_allocation_a_program_is_where_the_launcher_starts_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the login node of an allocation nothing of the job is here; on its first node, what fits there."""
    nodes = folder / "nodes"
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))

    def placed(command: str) -> list[tuple[int, bool]]:
        """Nodes of the points of 1 and 3 ranks, and whether they are here."""
        asked = StudySettings(kind="strong", command=command, axes={"ranks": [1, 3]}, repeats=1)
        asked.allocated = allocated_hosts(os.environ)
        return [(point.settings["nodes"], is_here(point.settings, "")) for point in asked.points()]

    nodes.write_text("elsewhere\nelsewhere\nfurther\n")
    assert placed("python train.py") == [(1, False), (2, False)]
    assert placed("torchrun --nproc-per-node {ranks} train.py") == [(1, True), (1, True)], "it starts its ranks itself"
    words = ("--command", "python train.py", "--ranks", "1,3")
    assert "0.05 node-hours" in planned(capsys, *words)
    assert "0.033 node-hours" in planned(capsys, *words, "--submit", "pbs"), "jobs get nodes of their own"
    nodes.write_text(f"{socket.gethostname()}.site\n{socket.gethostname()}.site\nfurther\n")
    assert placed("python train.py") == [(1, True), (2, False)]
    nodes.write_text(f"{socket.gethostname()}\n")
    assert placed("python train.py") == [(1, True), (1, True)]


def test_a_program_of_the_user_s() -> None:
    settings = {"command": "torchrun --nproc-per-node {ranks} train.py --lr {rate}", "ranks": 2, "nodes": 1, "rate": 0.1}
    assert command_words(settings, Path())[:3] == ["torchrun", "--nproc-per-node", "2"]
    plain = command_words({"command": "{python} train.py", "ranks": 2, "nodes": 1}, Path())
    assert plain[-5:] == ["-n", "2", "--", sys.executable, "train.py"]
    with pytest.raises(SettingsError, match=r"\{lr\} is no setting of the study; there are ranks"):
        command_words({"command": "python {lr}", "ranks": 2, "nodes": 1}, Path())


# What is refused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "stong"}, "strong, weak, batch, lr"),
        ({"axes": {}}, "--ranks 1,2,4"),
        ({"kind": "batch", "axes": {"ranks": [1]}}, "--batches 20,40, or of a workload --ranks 1,2"),
        ({"kind": "lr", "axes": {"seed": [1, 2]}}, "--rates 0.001,0.01, or of a workload --ranks 1,2"),
        ({"kind": "lr", "settings": {"lr_scaling": "none"}}, "--rates 0.001,0.01"),
        ({"kind": "lr", "benchmark": "", "command": "x"}, "--rates 0.001,0.01"),
        ({"idle_s": "10"}, "idle_s='10': expected seconds, e.g. --idle 10"),
        ({"idle_s": float("nan")}, "idle_s=nan: expected seconds"),
        ({"axes": {"ranks": []}}, "ranks has no values"),
        ({"axes": {"ranks": [1, 1]}}, "a value twice"),
        ({"axes": {"ranks": [0]}}, "whole numbers from 1"),
        ({"settings": {"ranks": 2}}, "fixed and varied at once"),
        ({"settings": {"work": "weak"}}, "not to be given"),
        ({"settings": {"data": "x"}}, "data: not to be given"),
        ({"benchmark": "nt4"}, "nt3, p1b1, p1b2, p1b3"),
        ({"command": "x"}, "one of both"),
        ({"repeats": -1}, "repeats=-1"),
        ({"repeats": "3"}, "repeats='3': expected a whole number"),
        ({"ranks_per_node": -1}, "ranks_per_node=-1"),
        ({"title": 3}, "title=3: expected text"),
        ({"kind": ["strong"]}, "expected text"),
        ({"settings": {"epochs": {1, 2}}}, "epochs=.*expected numbers"),
        ({"axes": {"emulate_ranks": ["8"]}, "settings": {"ranks": "auto"}}, "emulate_ranks='8': expected whole numbers"),
        ({"benchmark": "", "command": "python 'x"}, "--command python 'x: No closing quotation"),
        ({"benchmark": "", "command": "  "}, "--command is blank"),
        ({"benchmark": "", "command": "python {typo}"}, "{typo} is no setting of the study; there are ranks"),
        ({"benchmark": "", "command": "x", "axes": {"ranks": [1], "seed": [1, 2]}}, "does not use seed: .*Put {seed} where"),
        ({"axes": {"ranks": [3]}}, "3 ranks.*16 epochs do not divide"),
        ({"settings": {"epoch": 1}}, "unknown.*epochs"),
        ({"settings": {"verbose": 1}}, "verbose: .* changes nothing of a run. Leave it out"),
        ({"settings": {"train_data": "nt_train2.csv"}}, "train_data: .* Leave it out"),
        ({"settings": {"save_path": "x"}}, "output_dir: not to be given"),
        ({"settings": {"drop": 0.1}, "axes": {"ranks": [1], "dropout": [0.1]}}, "dropout: fixed and varied at once"),
        ({"settings": {"config_file": "absent.txt"}}, "absent.txt is no config file"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        study(**given).points()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind = 'strong'\nbenchmrk = 'nt3'", "unknown key 'benchmrk'; known: axes, benchmark"),
        ("kind = 'loaders'\naxes = 1", "unknown key 'axes'; known: benchmarks"),
        ("benchmark = 'nt3'", "kind is missing"),
        ("kind = ", "no TOML"),
        ("kind = 'strong'\naxes = 3", "must be a table"),
        ("kind = 'strong'\nout = 3", "out=3: expected a folder"),
        ("kind = 'loaders'", "benchmarks is missing"),
        ("kind = 'loaders'\nbenchmarks = 'nt3'", "benchmarks='nt3': expected a list"),
        ("kind = 'loaders'\nbenchmarks = ['nt3']\nranks = ['1']", "ranks=.*expected a list"),
        ("kind = 'loaders'\nbenchmarks = ['nt3']\nrepeats = '3'", "repeats='3': expected a whole number"),
    ],
)
def test_a_study_file_s_mistakes_are_named(folder: Path, text: str, said: str) -> None:
    (folder / "my.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_toml(folder / "my.toml")


LOADERS = "kind = 'loaders'\nbenchmarks = ['nt3']\n"
PROGRAM = "kind = 'strong'\ncommand = 'true'\npreset = 'test'\n[axes]\nranks = [1]\n"
STRONG = ["strong", "--ranks", "1"]


@pytest.mark.parametrize(
    ("words", "file", "said"),
    [
        (["strong", "nt3"], "", "--ranks 1,2,4"),
        (["strong", "nt3", "--ranks", "two"], "", "give numbers, e.g. --ranks 1,2"),
        (["strong", "nt3", "--ranks", "1x"], "", "--ranks 1x: give ranks, or ranks x threads for all, e.g. --ranks 1x8,2x4,8x1"),
        (["strong", "nt3", "--ranks", "1x2,4"], "", "or ranks x threads for all"),
        (["strong", "--ranks", "2"], "", "name a workload"),
        (["lr", "nt3", "--rates", "0.1", "--set", "learning_rat=1"], "", "learning_rate"),
        (["weak", "nt3", "--ranks", "2", "--vary", "rate"], "", "expected NAME=VALUE"),
        (["strong", "nt3", "--ranks", "2", "--submit", "oar"], "", "sbatch, pbs, lsf"),
        ([*STRONG, "nt3", "--time", "00:30:00"], "", "--time: * Add --submit"),
        ([*STRONG, "nt3", "--directive=--partition=short"], "", "--directive: * Add --submit"),
        ([*STRONG, "nt3", "--submit", "sbatch", "--time", "banana"], "", "--time banana: expected HH:MM:SS or D-HH:MM:SS"),
        ([*STRONG, "nt3", "--submit", "lsf", "--out", "a b"], "", "a b has ' ' in its name"),
        ([*STRONG, "nt3", "--idle", "10", "--no-power"], "", "--idle and --no-power: * Leave one out"),
        ([*STRONG, "--command", "true", "--preset", "test"], "", "preset: * Leave it out"),
        ([*STRONG, "--command", "true", "--framework", "jax", "--preset", "test"], "", "preset, framework: * Leave it out"),
        ([*STRONG, "--command", "true", "--scalars", "tensorboard"], "", "--scalars: * Leave it out"),
        ([*STRONG, "nt3", "--scalars", "tensorbord"], "", "unknown. Use one of tensorboard, mlflow, wandb"),
        (["nothing.toml"], "", "cannot be read"),
        (["my.toml"], PROGRAM, "preset: * Leave it out"),
        (["my.toml", "--hosts", "a:1"], LOADERS, "--hosts: * Leave it out"),
        (["my.toml", "--submit", "sbatch"], LOADERS, "--submit: * Leave it out"),
        (["my.toml", "--ranks-per-node", "2"], LOADERS, "--ranks-per-node: * Leave it out"),
        (["my.toml", "--scalars", "wandb"], LOADERS, "--scalars: * Leave it out"),
        (["my.toml", "--idle", "5"], LOADERS, "--idle: * Leave it out"),
        (["my.toml", "--time", "00:30:00"], LOADERS, "--time: * Leave it out"),
        (["my.toml", "--threads", "2"], LOADERS, "--threads: * Leave it out"),
        (["my.toml", "--directive=--partition=short"], LOADERS, "--directive: * Leave it out"),
        (["loaders", "nt4"], "", "nt3, p1b1, p1b2, p1b3"),
        (["loaders", "nt3", "--loaders", "duckdb"], "", "pandas, pandas-chunked, dask, polars, pyarrow, fast"),
        (["loaders", "nt3", "--ranks", "0"], "", "--ranks 1,2"),
        (["loaders", "nt3", "--ranks", "two"], "", "--ranks 1,2"),
        (["loaders", "nt3", "--repeats", "-1"], "", "repeats=-1"),
    ],
)
def test_mistakes_are_explained_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], file: str, said: str) -> None:
    if file:
        (folder / "my.toml").write_text(file)
    assert main(["study", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("farandole: ") and len(told.splitlines()) == 1
    for part in said.split("*"):
        assert part in told
    assert not [*folder.rglob("study.json"), *folder.rglob("*.csv")], "nothing was made"


@pytest.mark.parametrize(
    ("words", "missing", "said"),
    [
        (["--scalars", "wandb"], "wandb", "not installed. Type: pip install wandb"),
        (["--scalars", "tensorboard"], "tensorboard", "not installed. Type: pip install 'farandole[tensorboard]'"),
        (["--scalars", "tensorboard", "--submit", "sbatch"], "", "study table s --scalars tensorboard"),
    ],
)
def test_scalars_that_cannot_be_written_are_refused_before_anything_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], missing: str, said: str
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    else:
        pytest.importorskip("tensorboard")
    assert main(["study", "strong", "nt3", "--ranks", "1", "--out", "s", *words]) == 2
    assert said in capsys.readouterr().err and not (folder / "s").exists()


# farandole in an environment that has no polars.
WITHOUT_POLARS = """
import sys
from importlib import metadata

found = metadata.version

def version(name):
    if name == "polars":
        raise metadata.PackageNotFoundError(name)
    return found(name)

metadata.version = version
from farandole.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("words", "code", "said"), [(["--loaders", "polars"], 2, "loader='polars' is not installed. Type: pip install 'farandole[loaders]'"), ([], 0, "")])
def test_a_loader_that_is_not_installed_is_read_by_nobody_unless_it_is_named(folder: Path, words: list[str], code: int, said: str) -> None:
    asked = [sys.executable, "-c", WITHOUT_POLARS, "study", "loaders", "nt3", "--repeats", "1", *words, "--dry-run"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert told.returncode == code and said in told.stderr and not (folder / "out").exists()
    loaders = {line.split("loader=")[1].split()[0] for line in told.stdout.splitlines() if "loader=" in line}
    assert loaders == ({"pandas", "pandas-chunked", "fast", "fast-cached"} if code == 0 else set())


def test_scalars_of_a_program_of_the_user_s_are_refused_afterwards_too(folder: Path) -> None:
    study_folder = StudyFolder(folder / "s")
    write_plan(StudySettings(kind="strong", command="true", axes={"ranks": [1]}), study_folder, ["study"])
    with pytest.raises(SettingsError, match=r"--scalars: .* Leave it out"):
        export(study_folder, "tensorboard")


@pytest.mark.parametrize("words", [["--scalars", "tensorboard", "--json"], ["--scalars", "tensorboard", "--format", "csv"], ["--json", "--format", "csv"]])
def test_a_table_is_printed_in_one_way(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["study", "table", "s", *words])
    assert "not allowed with argument" in capsys.readouterr().err


def test_an_unknown_study_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["study", "storng"])
    told = capsys.readouterr().err
    assert "strong" in told and "loaders" in told


@pytest.mark.parametrize("words", [["strong", "--command", "true", "--ranks", "1"], ["loaders", "nt3"]])
def test_a_dry_run_refuses_the_folders_that_the_run_would(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(StudySettings(kind="weak", command="train", axes={"ranks": [1]}), StudyFolder(folder / "x"), ["study"])
    assert main(["study", *words, "--out", "x", "--dry-run"]) == 1
    told = capsys.readouterr().err
    assert "holds another study" in told and len(told.splitlines()) == 1


def test_options_go_over_a_study_file(folder: Path) -> None:
    (folder / "my.toml").write_text("kind = 'lr'\nbenchmark = 'nt3'\nrepeats = 2\nidle_s = 10\n[axes]\nlearning_rate = [0.1]\n")
    found = StudySettings(**read_toml(folder / "my.toml", repeats=5, out=None))
    assert (found.repeats, found.idle_s, found.axes, found.out) == (5, 10, {"rate": [0.1]}, Path("out/study-my"))


def test_studies_go_below_one_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "loaders", "nt3", "--dry-run"]) == 0
    assert capsys.readouterr().out.endswith("results: out/study-loaders\n")
    assert study().out == Path("out/study-strong-nt3")


@pytest.mark.parametrize(("kind", "rule"), [("batch", "batch_scaling"), ("lr", "lr_scaling")])
@pytest.mark.parametrize("ranks", [{"ranks": [1, 2]}, {"emulate_ranks": [8]}])
def test_ranks_alone_vary_the_rules(kind: str, rule: str, ranks: dict[str, Any]) -> None:
    found = study(kind=kind, axes=ranks).points()
    assert [point.settings[rule] for point in found] == ["linear", "sqrt", "cbrt", "none"] * len(next(iter(ranks.values())))
    given = study(kind=kind, axes={**ranks, rule: ["none"]}).points()
    assert {point.settings[rule] for point in given} == {"none"}


def test_marks() -> None:
    settings = {"ranks": 1000, "nodes": 1, "emulate_ranks": 2000}
    assert marks_of(settings, {"power_provenance": "modelled"}) == ["oversubscribed", "emulated ranks", "modelled power"]
    assert marks_of({"ranks": 1000, "nodes": 500}, {"power_provenance": "none"}) == []
    assert marks_of({"ranks": 1, "nodes": 1, "threads": 1000}, {}) == ["oversubscribed"], "threads need cores as ranks do"
    assert [marks_of({"ranks": 1, "nodes": 1}, {"others_share": share}) for share in (None, 0.05, 0.06)] == [[], [], ["busy machine"]]
    assert marks_of({"ranks": 1000, "nodes": 1}, {}, "localhost:1000,b:1") == ["oversubscribed"]
    assert marks_of({"ranks": 1000, "nodes": 1}, {}, "b:1000,localhost:1") == []


# Estimates


def test_estimates_learn() -> None:
    points = study(axes={"ranks": [1]}, repeats=2).points()
    estimate = Estimate()
    guess = estimate.seconds(points[:1])
    estimate.learn({"status": "ok", "wall_s": 3 * guess, "settings": points[0].settings})
    assert estimate.seconds(points) == pytest.approx(6 * guess)
    longer = study(axes={"ranks": [1]}, settings={"epochs": 160}).points()
    assert estimate.seconds(longer) > estimate.seconds(points[:1])


def seconds_a_pass(benchmark: str, **settings: Any) -> float:
    """What 16 epochs more would take."""
    few, many = (study(benchmark=benchmark, axes={"ranks": [1]}, settings={"epochs": epochs, **settings}).points() for epochs in (16, 32))
    return Estimate().seconds(many) - Estimate().seconds(few)


@pytest.mark.parametrize(
    ("benchmark", "subsample", "share"),
    [("p1b3", 30, 61 / 231), ("p1b3", 1000, 1), ("nt3", 100, 100 / 400)],
)
def test_the_time_follows_the_features_that_are_left(benchmark: str, subsample: int, share: float) -> None:
    """P1B3's are drawn from two tables: of 1 + 200 + 30, 30 of each leave 1 + 30 + 30."""
    found = seconds_a_pass(benchmark, feature_subsample=subsample) / seconds_a_pass(benchmark)
    assert found == pytest.approx(share)


def test_a_batch_that_does_not_fit_can_still_be_estimated() -> None:
    big = study(kind="batch", axes={"batch_size": [20, 100_000]}).points()
    assert Estimate().seconds(big) > 0
