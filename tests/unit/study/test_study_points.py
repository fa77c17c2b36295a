"""Points of a study: what is run, under which name, and what is refused before anything runs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from farandole.cli import _parser, main
from farandole.errors import SettingsError
from farandole.study.estimate import Estimate, _share_of_features
from farandole.study.folder import StudyFolder
from farandole.study.options import _place
from farandole.study.pointrun import PointRunner, command_words, marks_of
from farandole.study.points import Point, expand, is_here, warning_of
from farandole.study.running import plan_text, run_study, table_of, write_plan
from farandole.study.scalars import export
from farandole.study.settings import StudySettings, read_toml
from farandole.train.command import _values
from farandole.train.settings import RunSettings
from powertree import Machine
from studyfolder import Shape, make_loaders, make_study


def study(**given: Any) -> StudySettings:
    return StudySettings(**{"kind": "strong", "benchmark": "nt3", "preset": "test", "axes": {"ranks": [1, 2]}, **given})


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
    given = study(settings={"epochs": 16}).points()[1]
    assert given.key == study(axes={"ranks": [2]}, title="another").points()[0].key, "16 epochs are the default"
    assert given.key != study(settings={"epochs": 32}).points()[1].key
    assert len(given.key) == 12 and int(given.key, 16) >= 0


def test_the_run_gets_exactly_these_settings() -> None:
    fixed = {"conv": [4, 5, 1], "pool": [4], "learning_rate": 0.5, "shuffle": True, "optimizer": "adam", "data_dir": "d"}
    (point,) = study(kind="weak", axes={"emulate_ranks": [4]}, settings={**fixed, "ranks": 2}).points()
    words = command_words(point.settings, Path("points/x"))
    options = vars(_parser().parse_args(words[words.index("run") :]))
    run = RunSettings.from_flat(_values(options))
    assert (options["ranks"], str(run.output_dir), run.work, run.emulate_ranks) == (2, "points/x", "weak", 4)
    parameters = run.parameters.as_dict()
    assert (parameters["conv"], parameters["learning_rate"], str(run.data_dir)) == ([4, 5, 1], 0.5, "d")


def test_names_that_a_run_takes_for_others() -> None:
    (point,) = study(axes={"ranks": [1]}, settings={"drop": 0.2, "ckpt_save_interval": 5, "ckpt_save_best": True}).points()
    assert point.settings["dropout"] == 0.2 and "drop" not in point.settings
    assert (point.settings["checkpoint_every"], point.settings["checkpoint_best"]) == ("5", "val_loss")
    one, two = study(benchmark="p1b2", axes={"ranks": [1], "penalty": [0.1, 0.2]}).points()
    assert (one.settings["reg_l2"], two.settings["reg_l2"]) == (0.1, 0.2)
    (plain,) = study(axes={"ranks": [1]}, settings={"checkpoint_every": 2}).points()
    assert plain.settings["checkpoint_every"] == "2"


def test_a_config_file_is_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    file.write_text("[Global_Params]\ndrop = 0.3\nbatch_size = 40\ntrain_data = 'nt_train2.csv'\nsave_path = 'x'\nverbose = 1\n")
    (point,) = study(axes={"ranks": [1]}, settings={"config_file": str(file), "batch_size": 10}).points()
    assert (point.settings["dropout"], point.settings["batch_size"]) == (0.3, 10)
    assert not {"config_file", "train_data", "output_dir", "verbose"} & {*point.settings}
    words = command_words(point.settings, Path("points/x"))
    run = RunSettings.from_flat(_values(vars(_parser().parse_args(words[words.index("run") :]))))
    assert run.parameters.dropout == 0.3 and run.parameters.batch_size == 10


def test_no_rate_is_the_optimizer_s_and_not_the_preset_s() -> None:
    (point,) = study(axes={"ranks": [1]}, settings={"rate": None}).points()
    words = command_words(point.settings, Path("points/x"))
    run = RunSettings.from_flat(_values(vars(_parser().parse_args(words[words.index("run") :]))))
    assert point.settings["rate"] is None and run.parameters.learning_rate is None


def test_as_many_ranks_emulate_others_as_divide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.study.points.usable_cores", lambda: 4)
    found = study(axes={"emulate_ranks": [1, 2, 8]}, settings={"ranks": "auto"}).points()
    assert [point.settings["ranks"] for point in found] == [1, 2, 4]
    with pytest.raises(SettingsError, match="whole numbers from 1"):
        study(kind="batch", axes={"batch_size": [1]}, settings={"ranks": "auto"}).points()


def auto(monkeypatch: pytest.MonkeyPatch, cores: int) -> list[Point]:
    monkeypatch.setattr("farandole.study.points.usable_cores", lambda: cores)
    return study(axes={"emulate_ranks": [2, 8]}, settings={"ranks": "auto"}).points()


def test_another_machine_s_cores_make_no_other_points(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = auto(monkeypatch, 1), auto(monkeypatch, 8)
    assert [point.key for point in few] == [point.key for point in many]
    assert [point.settings["ranks"] for point in (*few, *many)] == [1, 1, 2, 8]
    assert few[0].key != study(axes={"emulate_ranks": [2]}, settings={"ranks": 1}).points()[0].key, "asked for by number"


def test_a_program_may_spread_its_ranks_over_nodes_itself() -> None:
    (point,) = study(benchmark="", command="srun -n {ranks} python x", axes={"ranks": [4]}, ranks_per_node=2).points()
    assert point.settings["nodes"] == 2


def test_several_nodes_are_reached_through_the_launcher() -> None:
    (point,) = study(axes={"ranks": [4]}, ranks_per_node=2).points()
    words = command_words(point.settings, Path("here"))
    assert point.settings["nodes"] == 2
    assert words[2:7] == ["farandole", "launch", "-n", "4", "--timeline"]
    assert "-n" not in words[words.index("run") :]


def test_hosts_are_filled_one_after_the_other() -> None:
    asked = study(axes={"ranks": [1, 2, 4]}, hosts="a:1,b:2,c:1")
    points = asked.points()
    assert [point.settings["nodes"] for point in points] == [1, 2, 3]
    words = command_words(points[2].settings, Path("here"), asked.hosts)
    options = vars(_parser().parse_args(words[words.index("run") :]))
    assert (options["ranks"], options["hosts"]) == (4, "a:1,b:2,c:1")
    own = command_words({"command": "python train.py", "ranks": 3, "nodes": 2}, Path(), asked.hosts)
    assert own[3:] == ["launch", "-n", "3", "--hosts", "a:1,b:2,c:1", "--", "python", "train.py"]


def test_on_other_hosts_points_are_others() -> None:
    def of(hosts: str) -> Point:
        (point,) = study(axes={"ranks": [2]}, settings={"epochs": 4}, hosts=hosts).points()
        return point

    here, there = of(""), of("a:1,b:1")
    assert "hosts" not in here.settings and here.key == Point(settings=here.settings).key, "as before there were hosts"
    assert there.settings == {**here.settings, "nodes": 2, "hosts": "a:1,b:1"}
    assert there.key == of("a, b").key, "one slot, however it is written"
    assert len({one.key for one in (here, there, of("a:1,c:1"), of("a:1,b:2"), of("a:2,b:2"))}) == 5
    own = StudySettings(kind="strong", command="train", axes={"ranks": [2]}, hosts="a:1,b:1").points()[0]
    assert own.settings == {"ranks": 2, "nodes": 2, "hosts": "a:1,b:1", "command": "train"}
    varied = StudySettings(kind="strong", command="mpiexec -n {ranks} -hosts {hosts} x", axes={"ranks": [2], "hosts": ["a", "b"]})
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


def test_ranks_are_divided_among_nodes_only_where_there_are_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)
    divided = study(ranks_per_node=1)
    with pytest.raises(SettingsError, match=r"--ranks-per-node 1: there are no nodes.*--submit sbatch.*--hosts a:2,b:2"):
        _place(divided, None)
    _place(divided, "sbatch")
    (tmp_path / "nodes").write_text("a\nb\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    _place(divided, None)


def placed(command: str, submit: str | None = None) -> list[tuple[int, bool]]:
    """Nodes of the points of 1 and 3 ranks, and whether they are here."""
    asked = StudySettings(kind="strong", command=command, axes={"ranks": [1, 3]})
    _place(asked, submit)
    return [(point.settings["nodes"], is_here(point.settings, "")) for point in asked.points()]


def test_in_an_allocation_a_program_is_where_the_launcher_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the login node of an allocation nothing of the job is here; on its first node, what fits there."""
    nodes = tmp_path / "nodes"
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("PBS_NODEFILE", str(nodes))
    nodes.write_text("elsewhere\nelsewhere\nfurther\n")
    assert placed("python train.py") == [(1, False), (2, False)]
    assert placed("torchrun --nproc-per-node {ranks} train.py") == [(1, True), (1, True)], "it starts its ranks itself"
    assert placed("python train.py", "pbs") == [(1, False), (1, False)], "jobs get nodes of their own"
    nodes.write_text(f"{socket.gethostname()}.site\n{socket.gethostname()}.site\nfurther\n")
    assert placed("python train.py") == [(1, True), (2, False)]
    nodes.write_text(f"{socket.gethostname()}\n")
    assert placed("python train.py") == [(1, True), (1, True)]


def test_of_a_job_s_nodes_the_login_node_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes").write_text("elsewhere\n")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "nodes"))
    monkeypatch.setattr("farandole.study.pointrun.command_words", lambda *given: ["true"])
    monkeypatch.setattr("farandole.observe.power.discover.find_sensors", lambda root: pytest.fail("sampled the login node"))
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", idle_s=1.0).run(Point(settings={"command": "train", "ranks": 1000, "nodes": 1}))
    assert found["marks"] == [] and found["figures"]["cpu_s"] is None and found["figures"]["energy_j"] is None


def test_a_program_of_the_user_s() -> None:
    settings = {"command": "torchrun --nproc-per-node {ranks} train.py --lr {rate}", "ranks": 2, "nodes": 1, "rate": 0.1}
    assert command_words(settings, Path())[:3] == ["torchrun", "--nproc-per-node", "2"]
    plain = command_words({"command": "python train.py", "ranks": 2, "nodes": 1}, Path())
    assert plain[-5:] == ["-n", "2", "--", "python", "train.py"]
    with pytest.raises(SettingsError, match=r"\{lr\} is no setting of the study; there are ranks"):
        command_words({"command": "python {lr}", "ranks": 2, "nodes": 1}, Path())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "stong"}, "strong, weak, batch, lr"),
        ({"axes": {}}, "--ranks 1,2,4"),
        ({"kind": "batch", "axes": {"ranks": [1]}}, "--batches 20,40, or of a benchmark --ranks 1,2"),
        ({"kind": "lr", "axes": {"seed": [1, 2]}}, "--rates 0.001,0.01, or of a benchmark --ranks 1,2"),
        ({"kind": "lr", "settings": {"lr_scaling": "none"}}, "--rates 0.001,0.01"),
        ({"kind": "lr", "benchmark": "", "command": "x"}, "--rates 0.001,0.01"),
        ({"idle_s": "10"}, "idle_s='10': expected seconds, e.g. --idle 10"),
        ({"idle_s": float("nan")}, "idle_s=nan: expected seconds"),
        ({"axes": {"ranks": []}}, "ranks has no values"),
        ({"axes": {"ranks": [1, 1]}}, "a value twice"),
        ({"axes": {"ranks": [0]}}, "whole numbers from 1"),
        ({"settings": {"ranks": 2}}, "fixed and varied at once"),
        ({"settings": {"work": "weak"}}, "not to be given"),
        ({"benchmark": "nt4"}, "nt3, p1b1, p1b2, p1b3"),
        ({"command": "x"}, "one of both"),
        ({"repeats": 0}, "repeats=0"),
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
def test_a_study_file_s_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "my.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read_toml(file)


@pytest.mark.parametrize("option", [["--hosts", "a:1"], ["--submit", "sbatch"], ["--ranks-per-node", "2"], ["--scalars", "wandb"], ["--idle", "5"], ["--time", "00:30:00"], ["--directive=--partition=short"]])
def test_loaders_are_measured_here(tmp_path: Path, option: list[str]) -> None:
    file = tmp_path / "loaders.toml"
    file.write_text("kind = 'loaders'\nbenchmarks = ['nt3']\n")
    options = _parser().parse_args(["study", str(file), *option, "--dry-run"])
    with pytest.raises(SettingsError, match=f"{option[0].partition('=')[0]}: .* Leave it out"):
        options.run(options)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scalars", "tensorbord"], "unknown. Use one of tensorboard, mlflow, wandb"),
        (["--scalars", "wandb"], "not installed. Type: pip install wandb"),
        (["--scalars", "tensorboard", "--submit", "sbatch"], "study table s --scalars tensorboard"),
    ],
)
def test_scalars_that_cannot_be_written_are_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("farandole.study.scalars.find_spec", lambda package: None)
    options = _parser().parse_args(["study", "strong", "nt3", "--ranks", "1", "--out", "s", *words])
    with pytest.raises(SettingsError, match=said):
        options.run(options)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nt3", "--time", "00:30:00"], "--time: .* Add --submit"),
        (["nt3", "--directive=--partition=short"], "--directive: .* Add --submit"),
        (["nt3", "--submit", "sbatch", "--time", "banana"], "--time banana: expected HH:MM:SS or D-HH:MM:SS"),
        (["nt3", "--submit", "lsf", "--out", "a b"], "a b has ' ' in its name"),
        (["nt3", "--idle", "10", "--no-power"], "--idle and --no-power: .* Leave one out"),
        (["--command", "true", "--preset", "test"], "preset: .* Leave it out"),
        (["--command", "true", "--framework", "jax", "--preset", "test"], "preset, framework: .* Leave it out"),
        (["--command", "true", "--scalars", "tensorboard"], "--scalars: .* Leave it out"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    options = _parser().parse_args(["study", "strong", "--ranks", "1", "--out", "s", "--dry-run", *words])
    with pytest.raises(SettingsError, match=said):
        options.run(options)


def test_a_file_for_a_program_of_the_user_s_has_no_preset_either(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("kind = 'strong'\ncommand = 'true'\npreset = 'test'\n[axes]\nranks = [1]\n")
    options = _parser().parse_args(["study", str(file), "--dry-run"])
    with pytest.raises(SettingsError, match=r"preset: .* Leave it out"):
        options.run(options)


def test_scalars_of_a_program_of_the_user_s_are_refused_afterwards_too(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    write_plan(StudySettings(kind="strong", command="true", axes={"ranks": [1]}), folder, ["study"])
    with pytest.raises(SettingsError, match=r"--scalars: .* Leave it out"):
        export(folder, "tensorboard")


@pytest.mark.parametrize("words", [["--scalars", "tensorboard", "--json"], ["--scalars", "tensorboard", "--format", "csv"], ["--json", "--format", "csv"]])
def test_a_table_is_printed_in_one_way(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["study", "table", "s", *words])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["strong", "--command", "true", "--ranks", "1"], ["loaders", "nt3"]])
def test_a_dry_run_refuses_the_folders_that_the_run_would(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    there = make_study(tmp_path / "x", Shape(ranks=(1,), repeats=1, trace=False)) if words[0] == "loaders" else make_loaders(tmp_path / "x", repeats=1)
    assert main(["study", *words, "--out", str(there), "--dry-run"]) == 1
    told = capsys.readouterr().err
    assert "holds another study" in told and len(told.splitlines()) == 1


def test_options_go_over_a_study_file(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("kind = 'lr'\nbenchmark = 'nt3'\nrepeats = 2\nidle_s = 10\n[axes]\nlearning_rate = [0.1]\n")
    found = StudySettings(**read_toml(file, repeats=5, out=None))
    assert (found.repeats, found.idle_s, found.axes, found.out) == (5, 10, {"rate": [0.1]}, Path("out/study-my"))


def test_one_point_is_no_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder, asked = StudyFolder(tmp_path), StudySettings(kind="strong", command="true {ranks}", axes={"ranks": [1]})
    assert "strong scaling: 1 point, 0 have a result already" in plan_text(asked, folder)
    for _ in range(2):
        assert run_study(asked, folder, command=["study"], power=False) == 0
    assert f"1 of 1 point has a result in {tmp_path} already" in capsys.readouterr().err
    assert "1 point, 1 has a result already" in plan_text(asked, folder)
    words = ["study", "strong", "--command", "true {ranks}", "--ranks", "1", "--out", str(tmp_path), "--submit", "sbatch"]
    assert main(words) == 0
    assert f"the point has a result in {tmp_path}: there is nothing to submit" in capsys.readouterr().out
    monkeypatch.setattr("farandole.study.points.usable_cores", lambda: 1)
    assert "4 ranks on 1 core:" in warning_of([4])


def test_studies_go_below_one_folder() -> None:
    assert _parser().parse_args(["study", "loaders", "nt3"]).out == Path("out/study-loaders")
    assert study().out == Path("out/study-strong-nt3")


def test_results_keep_what_they_were_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study typed again with more points, after a commit."""
    commits = iter(["a" * 40, "b" * 40])
    monkeypatch.setattr("farandole.train.record.git_state", lambda: {"commit": next(commits), "changed": False})
    folder = StudyFolder(tmp_path)
    for batches in ([1], [1, 2]):
        asked = StudySettings(kind="batch", command="true {ranks} {batch_size}", axes={"batch_size": batches})
        assert run_study(asked, folder, command=["study", "batch", f"--batches={batches[-1]}"], power=False) == 0
    told = [(one["settings"]["batch_size"], one["made_with"]["command"], one["made_with"]["git"]["commit"][0]) for one in folder.results()]
    assert told == [(1, "farandole study batch --batches=1", "a"), (2, "farandole study batch --batches=2", "b")]
    assert folder.results()[0]["made_with"]["environment"]["packages"]["farandole"]
    assert folder.plan()["command"] == "farandole study batch --batches=2"
    page = (tmp_path / "report.html").read_text()
    for shown in ('data-text="farandole study batch --batches=1"', 'data-text="farandole study batch --batches=2"', f"{'a' * 40}; {'b' * 40}", "2 commits"):
        assert shown in page


@pytest.mark.parametrize(("kind", "rule"), [("batch", "batch_scaling"), ("lr", "lr_scaling")])
@pytest.mark.parametrize("ranks", [{"ranks": [1, 2]}, {"emulate_ranks": [8]}])
def test_ranks_alone_vary_the_rules(kind: str, rule: str, ranks: dict[str, Any]) -> None:
    found = study(kind=kind, axes=ranks).points()
    assert [point.settings[rule] for point in found] == ["linear", "sqrt", "cbrt", "none"] * len(next(iter(ranks.values())))
    given = study(kind=kind, axes={**ranks, rule: ["none"]}).points()
    assert {point.settings[rule] for point in given} == {"none"}


def test_joules_above_those_of_the_idle_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that always takes the same: nothing is above idle. It is measured once, before the first point."""
    Machine(tmp_path / "bare").proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path / "bare"))
    given: dict[str, Any] = {"kind": "batch", "command": "sleep 0.{batch_size} {ranks}", "axes": {"batch_size": [3, 4]}}
    folder, plain = StudyFolder(tmp_path / "idle"), StudyFolder(tmp_path / "plain")
    assert run_study(StudySettings(**given, idle_s=0.5), folder, command=["study"], power=True) == 0
    reports = [json.loads((folder.path / one["run"] / "power.json").read_text()) for one in folder.results()]
    assert reports[0]["idle"] == reports[1]["idle"] and reports[0]["idle"]["duration_s"] == pytest.approx(0.5, abs=0.2)
    for one in folder.results():
        figures = one["figures"]
        assert figures["idle_w"] == pytest.approx(figures["power_w"], rel=0.01) and figures["energy_j"] > 0
        assert abs(figures["above_idle_j"]) < 0.01 * figures["energy_j"]
    assert "J above idle" in table_of(folder, "text") and "above_idle_j" in table_of(folder, "csv")

    assert run_study(StudySettings(**given), plain, command=["study"], power=True) == 0
    (one, _) = plain.results()
    assert one["figures"]["above_idle_j"] is None and one["reasons"]["above_idle_j"] == "the idle node was not measured (--idle)"
    assert "J above idle" not in table_of(plain, "markdown")


def test_marks() -> None:
    settings = {"ranks": 1000, "nodes": 1, "emulate_ranks": 2000}
    assert marks_of(settings, {"power_provenance": "modelled"}) == ["oversubscribed", "emulated ranks", "modelled power"]
    assert marks_of({"ranks": 1000, "nodes": 500}, {"power_provenance": "none"}) == []
    assert [marks_of({"ranks": 1, "nodes": 1}, {"others_share": share}) for share in (None, 0.05, 0.06)] == [[], [], ["busy machine"]]


@pytest.mark.parametrize("hosts", ["big:8", "big:4,other:4"])
def test_of_other_machines_neither_cores_nor_meters_are_known_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    monkeypatch.setattr("farandole.study.points.usable_cores", lambda: 2)
    monkeypatch.setattr("farandole.study.pointrun.command_words", lambda *given: ["true"])
    monkeypatch.setattr("farandole.observe.power.discover.find_sensors", lambda root: pytest.fail("sampled for nothing"))
    (point,) = StudySettings(kind="strong", command="train", axes={"ranks": [8]}, hosts=hosts).points()
    found = PointRunner(folder=StudyFolder(tmp_path), kind="strong", hosts=hosts).run(point)
    assert found["status"] == "ok" and found["marks"] == []
    for figure in ("cpu_s", "others_share"):
        assert found["figures"][figure] is None and "other machines" in found["reasons"][figure]
    assert found["figures"]["energy_j"] is None and "a program of your own is sampled only" in found["reasons"]["energy_j"]


def test_what_others_do_meanwhile_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.study.pointrun.command_words", lambda *given: ["sleep", "1"])
    (point,) = StudySettings(kind="strong", command="train", axes={"ranks": [1]}).points()
    runner = PointRunner(folder=StudyFolder(tmp_path), kind="strong", power=False)
    # A program of somebody else's: no child of this one's, and gone by itself.
    subprocess.run(f"timeout 5 {sys.executable} -c 'while True: pass' >/dev/null 2>&1 &", shell=True, check=True)
    share = runner.run(point)["figures"]["others_share"]
    assert 0.25 / (os.cpu_count() or 1) < share <= 1, "it had a quarter of a core or more"


def test_hosts_that_are_this_machine_are_known() -> None:
    assert marks_of({"ranks": 1000, "nodes": 1}, {}, "localhost:1000,b:1") == ["oversubscribed"]
    assert marks_of({"ranks": 1000, "nodes": 1}, {}, "b:1000,localhost:1") == []


def test_estimates_learn() -> None:
    points = study(axes={"ranks": [1]}, repeats=2).points()
    estimate = Estimate()
    guess = estimate.seconds(points[:1])
    estimate.learn({"status": "ok", "wall_s": 3 * guess, "settings": points[0].settings})
    assert estimate.seconds(points) == pytest.approx(6 * guess)
    longer = study(axes={"ranks": [1]}, settings={"epochs": 160}).points()
    assert estimate.seconds(longer) > estimate.seconds(points[:1])


def test_features_are_drawn_from_two_tables_of_p1b3() -> None:
    """Of 1 + 200 + 30 features, 30 of each table leave 1 + 30 + 30."""
    run = {"benchmark": "p1b3", "preset": "test"}
    assert _share_of_features({**run, "feature_subsample": 30}) == pytest.approx(61 / 231)
    assert _share_of_features({**run, "feature_subsample": 1000}) == _share_of_features(run) == 1
    assert _share_of_features({"benchmark": "nt3", "preset": "test", "feature_subsample": 100}) == 100 / 400


def test_a_batch_that_does_not_fit_can_still_be_estimated() -> None:
    big = study(kind="batch", axes={"batch_size": [20, 100_000]}).points()
    assert Estimate().seconds(big) > 0


def test_a_fixed_setting_of_every_kind_reaches_every_point() -> None:
    assert [point.settings["a"] for point in expand({"command": "x", "a": 1}, {"ranks": [1, 2]}, 1)] == [1, 1]
