"""What can be asked of `farandole launch`, and what is said of what cannot."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.launch.hosts import Host
from farandole.launch.settings import LaunchSettings


def test_ranks_default_to_the_slots_of_the_hosts() -> None:
    assert LaunchSettings(command=["x"], hosts=[Host("a", 2), Host("b", 1)]).ranks == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"command": []}, "farandole launch -n 2 -- python train.py"),
        ({"command": ["python", "my script.py"]}, "farandole launch -n 2 -- python 'my script.py'"),
        ({"command": ["x"], "ranks": -1}, "ranks=-1"),
        ({"command": ["x"], "ranks": 1, "bind": "socket"}, "core, node, none"),
        ({"command": ["x"], "ranks": 1, "threads": 0}, "threads=0"),
        ({"command": ["x"], "ranks": 1, "stall_abort_s": -1.0}, "stall_abort_s=-1.0"),
        ({"command": ["x"], "ranks": 1, "fusion_threshold_mb": -1.0}, "fusion_threshold_mb=-1.0"),
        ({"command": ["x"], "ranks": 1, "time_limit_s": 0.0}, "time_limit_s=0.0"),
        ({"command": ["x"], "ranks": 1, "restarts": -1}, "restarts=-1"),
        (
            {"command": ["x"], "ranks": 1, "stall_check": False, "stall_abort_s": 9.0},
            "--no-stall-check and --stall-abort 9 exclude each other",
        ),
    ],
)
def test_settings_that_cannot_work_are_quoted(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as error:
        LaunchSettings(**settings)
    assert said in str(error.value)


def test_ranks_learn_of_the_settings_through_their_environment() -> None:
    settings = LaunchSettings(
        command=["x"], ranks=2, timeline=Path("t.json"), stall_warning_s=30, stall_abort_s=90.5, fusion_threshold_mb=2
    )  # fmt: skip
    assert settings.rank_variables() == {
        "FARANDOLE_LAUNCHED": "1",
        "FARANDOLE_LAUNCH_SIZE": "2",
        "FARANDOLE_TIMELINE": str(Path("t.json").absolute()),
        "FARANDOLE_STALL_CHECK_TIME_SECONDS": "30",
        "FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS": "90.5",
        "FARANDOLE_FUSION_THRESHOLD": str(2 << 20),
    }


def test_without_a_stall_check_ranks_are_told_so() -> None:
    told = LaunchSettings(command=["x"], ranks=2, stall_check=False).rank_variables()
    assert told["FARANDOLE_STALL_CHECK_DISABLE"] == "1"
    assert "FARANDOLE_STALL_CHECK_DISABLE" not in LaunchSettings(command=["x"], ranks=2).rank_variables()


def test_restarts_come_with_a_folder_for_commits_that_the_command_to_repeat_names() -> None:
    first, second = (LaunchSettings(command=["x"], ranks=2, restarts=3) for _ in range(2))
    assert first.commit_dir is not None and first.commit_dir != second.commit_dir
    assert first.rank_variables()["FARANDOLE_COMMIT_DIR"] == str(first.commit_dir.absolute())
    assert f"--restarts 3 --commit-dir {first.commit_dir}" in first.command_line()
    assert "FARANDOLE_COMMIT_DIR" not in LaunchSettings(command=["x"], ranks=2).rank_variables()


def test_a_hostfile_is_watched_and_named_again() -> None:
    settings = LaunchSettings(command=["x"], hosts=[Host("a", 2), Host("b", 1)], hostfile=Path("hosts"))
    told = settings.rank_variables()
    assert (told["FARANDOLE_HOSTFILE"], told["FARANDOLE_HOSTS"]) == (str(Path("hosts").absolute()), "a:2,b:1")
    assert settings.command_line() == "farandole launch -n 3 --hostfile hosts -- x"


def test_the_command_to_repeat_can_be_pasted() -> None:
    settings = LaunchSettings(
        command=["python", "a b.py", "--lr", "0.1"], hosts=[Host("a", 2)], threads=3, tune=False, output_dir=Path("out"), bind="core"
    )  # fmt: skip
    line = settings.command_line()
    assert shlex.split(line)[-4:] == ["python", "a b.py", "--lr", "0.1"]
    for words in ("-n 2", "--hosts a:2", "--threads 3", "--no-tune", "--output-dir out", "--bind core"):
        assert words in line
    assert "--stall" not in line
