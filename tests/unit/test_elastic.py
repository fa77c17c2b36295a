"""Elastic states in one process: what is saved, what is on disk, and when a job is started again."""

import os
import shutil
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file

from farandole.checkpoint import read
from farandole.elastic import ObjectState
from farandole.elastic.commits import Commits
from farandole.elastic.hosts import change_of_hosts
from farandole.errors import CommitError
from farandole.launch.commits import clear
from farandole.launch.hosts import Host, parse_hosts
from farandole.launch.job import Job
from farandole.launch.link import Link
from farandole.launch.messages import Ended, Place, RankException, Started
from farandole.launch.ranks import Rank
from farandole.launch.restarts import Restarts
from farandole.launch.settings import LaunchSettings


def alone(**values: Any) -> ObjectState:
    return ObjectState(bcast_object=lambda value, *_: value, get_rank=lambda: 0, **values)


@contextmanager
def commits_in(folder: Path, run: int = 0, say: Callable[[str], object] = pytest.fail) -> Iterator[Commits]:
    commits = Commits(folder, run, say)
    try:
        yield commits
    finally:
        commits.close()


def committed(folder: Path, *values: Any) -> list[Path]:
    """States with each of these values, committed; where those are that are there now."""
    with commits_in(folder) as commits:
        for value in values:
            commits.write({"value": value}, ranks=2)
    return sorted(folder.glob("run0/*-step-*"))


def newest(folder: Path, run: int = 0, say: Callable[[str], object] = pytest.fail) -> tuple[int, int, Any] | None:
    with commits_in(folder, run, say) as commits:
        found = commits.newest()
    return None if found is None else (found.number, found.ranks, found.values["value"])


# In memory


def test_restore_goes_back_to_the_last_save_however_values_were_changed() -> None:
    state = alone(epoch=0, losses=[])
    state.losses.append(0.5)
    state.save()
    for _ in range(2):  # what was restored is changed as well, and must not reach what was saved
        state.epoch = 7
        state.losses.append(0.25)
        state.restore()
        assert (state.epoch, state.losses) == (0, [0.5])


def test_reset_callbacks_are_called_in_their_order() -> None:
    state, called = alone(), []
    state.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    state.on_reset()
    assert called == [1, 2]


# On disk


def test_the_two_latest_commits_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    kept = committed(tmp_path / "new", 1, 2, 3, 4)
    assert [path.name for path in kept] == ["00000003-step-3", "00000004-step-4"]
    assert newest(tmp_path / "new") == (4, 2, 4)


class Loss(float):
    pass


Pair = namedtuple("Pair", "left right")

VALUES = [
    {"epoch": 3, 5: [None, True, ("a", float("inf")), 10**30]},
    OrderedDict(b=1, a=2), Counter("aab"), Pair(1, {2}), Loss(0.5), np.float64(0.5), {"mark$": {"$tuple": [1]}},
    np.float64, b"bytes", datetime(2026, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was_type_and_all(tmp_path: Path, value: Any) -> None:
    committed(tmp_path, value)
    found = newest(tmp_path)
    assert found is not None and found[2] == value
    assert repr(found[2]) == repr(value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", ">i4", "complex128", "datetime64[s]", "O"])
def test_arrays_of_every_type_come_back(tmp_path: Path, dtype: str) -> None:
    value = np.arange(6).reshape(2, 3).astype(bfloat16 if dtype == "bfloat16" else dtype)
    committed(tmp_path, value)
    found = newest(tmp_path)
    assert found is not None and found[2].dtype == value.dtype
    assert (found[2] == value).all()


def test_arrays_and_numbers_are_a_checkpoint_that_others_read_without_pickle(tmp_path: Path) -> None:
    (path,) = committed(tmp_path, {"weights": np.ones(3), "epoch": 2})
    assert not list(path.glob("*pickle*"))
    assert read(path)["value"]["epoch"] == 2
    assert load_file(path / "arrays.safetensors")["value/weights"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("file", ["manifest.json", "state.json", "arrays.safetensors", "objects.pickle"])
def test_a_commit_that_is_not_whole_is_named_and_the_one_before_is_used(tmp_path: Path, file: str) -> None:
    last = committed(tmp_path, {1}, {2}, {3})[-1]
    (last / file).write_bytes((last / file).read_bytes()[:-9])
    said: list[str] = []
    assert newest(tmp_path, say=said.append) == (2, 2, {2})
    assert len(said) == 1 and f"{last} is damaged: {file}" in said[0]


def test_every_elastic_function_of_a_script_has_its_own(tmp_path: Path) -> None:
    for run in (0, 1):
        with commits_in(tmp_path, run) as commits:
            commits.write({"value": run}, ranks=1)
    assert [newest(tmp_path, run) for run in (0, 1, 2)] == [(1, 1, 0), (1, 1, 1), None]


def test_clearing_removes_commits_only(tmp_path: Path) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    committed(mine, {1}, {2})
    committed(shared, {1})
    (shared / "run.json").write_text("{}")
    for folder in (mine, shared, tmp_path / "absent"):
        clear(folder)
    assert not mine.exists()
    assert [path.name for path in shared.iterdir()] == ["run.json"]


def test_a_commit_of_another_state_says_which_names_differ(tmp_path: Path) -> None:
    committed(tmp_path, 1)
    with commits_in(tmp_path) as commits, pytest.raises(CommitError, match="holds value, the state has batch, value"):
        alone(value=0, batch=0).resume(commits)


class Gone:
    """Deleted before it is read back, as a script's own classes can be."""


def test_a_commit_whose_classes_are_gone_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import farandole.elastic.commits as module

    monkeypatch.setattr(module, "Gone", Gone, raising=False)
    monkeypatch.setattr(Gone, "__module__", module.__name__)
    committed(tmp_path, Gone())
    monkeypatch.delattr(module, "Gone")
    with pytest.raises(CommitError, match=r"is whole, but .* cannot read it back: AttributeError.*Gone"):
        newest(tmp_path)


def test_commits_of_the_former_version_are_refused(tmp_path: Path) -> None:
    former = tmp_path / "run0.00000007.commit"
    former.write_bytes(b"farandole commit 1\n")
    with pytest.raises(CommitError, match=rf"{former} was made by an earlier version of farandole.* Remove {tmp_path}"):
        newest(tmp_path)
    clear(tmp_path)
    assert former.exists()


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommitError, match=r"Not a directory.*Another folder for commits: farandole launch --commit-dir DIR"):
        committed(tmp_path / "file", 1)


# Whose they are


class Trap:
    """Notes that it was unpickled."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __reduce__(self) -> Any:
        return Path.touch, (self.note,)


def test_only_their_owner_reads_objects_and_key(tmp_path: Path) -> None:
    (path,) = committed(tmp_path, {1})
    assert [(file.stat().st_mode & 0o777) for file in (path / "objects.pickle", tmp_path / "KEY")] == [0o600, 0o600]


def test_what_somebody_else_has_planted_is_never_unpickled(tmp_path: Path) -> None:
    mine, planted, note = tmp_path / "mine", tmp_path / "planted", tmp_path / "unpickled"
    committed(mine, {1})
    committed(planted, Trap(note))
    shutil.rmtree(mine / "run0")
    shutil.copytree(planted / "run0", mine / "run0")  # as a whole, its checksums too
    with pytest.raises(CommitError, match="does not have this job's code: somebody else has made it, and it is not read"):
        newest(mine)
    assert not note.exists()
    newest(planted)
    assert note.exists(), "which it would have been"


@pytest.mark.parametrize(("mode", "owner"), [(0o644, None), (0o600, 12345)], ids=["others may read it", "of another user"])
def test_a_key_that_somebody_else_may_know_is_refused(tmp_path: Path, mode: int, owner: int | None) -> None:
    if owner is not None and os.geteuid():
        pytest.skip("only root gives files away")
    committed(tmp_path, {1})
    (tmp_path / "KEY").chmod(mode)
    os.chown(tmp_path / "KEY", -1 if owner is None else owner, -1)
    with pytest.raises(CommitError, match="is not this job's: somebody else has made it, or others may read it"):
        newest(tmp_path)


# Hosts


def test_a_hostfile_that_has_changed_is_told_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    environment = {"FARANDOLE_HOSTFILE": str(file), "FARANDOLE_HOSTS": "a:2,b:2"}
    file.write_text("a slots=2\nb:2  # the same\n")
    assert change_of_hosts(environment) == ""
    file.write_text("a:2\nb:2\nc:2\n")
    assert "from a:2,b:2 to a:2,b:2,c:2. A running job can neither grow nor shrink" in change_of_hosts(environment)
    file.write_text("")
    assert change_of_hosts(environment) == "", "an editor has just truncated it"


# Starting again


def ended(started: bool = True, **how: Any) -> Job:
    """A job whose rank 1 has ended so."""
    place = Place(1, 2, 1, 2, "host7")
    rank = Rank(cast(Link, None), place, 1, started=Started(71, 1, "off") if started else None)
    rank.ended = Ended(failed_at=100.0, **how)
    cause = rank if rank.failed else None
    job = SimpleNamespace(cause=cause, problem="", interrupted_by=0, ranks={1: rank}, silent_hosts=set())
    return cast(Job, job)


def raised(kind: str) -> dict[str, Any]:
    return {"code": 1, "exception": RankException(kind, "why", consequence=False)}


def restarts(times: int, commit_dir: Path) -> Restarts:
    return Restarts(LaunchSettings(command=["x"], ranks=2, restarts=times, commit_dir=commit_dir))


def test_a_killed_rank_is_worth_every_restart_there_is(tmp_path: Path) -> None:
    some = restarts(2, tmp_path)
    assert [some.another(ended(signal=9)) for _ in range(3)] == [True, True, False]
    assert some.made == 2 and not some.refused
    assert not restarts(2, tmp_path).another(ended(code=0))
    assert not restarts(0, tmp_path).another(ended(signal=9))


def test_the_same_error_without_a_commit_in_between_is_not_tried_a_third_time(tmp_path: Path) -> None:
    some = restarts(5, tmp_path)
    assert [some.another(ended(**raised("ValueError"))) for _ in range(2)] == [True, False]
    assert some.made == 1 and some.refused == "it failed as before, without a new commit or checkpoint"


def test_one_that_has_come_further_in_between_is(tmp_path: Path) -> None:
    some = restarts(5, tmp_path)
    saved = [2, 1, 0]
    assert [some.another(ended(**raised("ValueError"), checkpoints=count)) for count in saved] == [True, True, False]


def on_two_hosts(restarts: int = 3, **more: Any) -> tuple[LaunchSettings, Restarts]:
    settings = LaunchSettings(command=["x"], hosts=parse_hosts("host1:2,host7.site:2"), restarts=restarts, **more)
    return settings, Restarts(settings)


def test_a_host_that_no_longer_answers_is_left_out(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    settings, some = on_two_hosts(hostfile=hostfile)
    job = ended(code=1, problem="host host7 has not answered")
    job.silent_hosts.add("host7")
    assert some.another(job)
    assert (some.without, settings.ranks, settings.hosts) == (["host7.site"], 2, [Host("host1", 2)])
    assert "-n 2 --hosts host1:2 " in settings.command_line()
    assert settings.rank_variables()["FARANDOLE_HOSTS"] == "host1:2,host7.site:2", "what the file says has not changed"


def test_a_host_whose_ranks_were_lost_is_left_out_once_the_job_cannot_be_started(tmp_path: Path) -> None:
    settings, some = on_two_hosts()
    assert some.another(ended(code=1, problem="the connection to its worker was lost"))
    assert (some.without, settings.ranks) == ([], 4)
    not_started = ended(code=0)
    not_started.problem = "mpiexec ended with code 255"
    assert some.another(not_started)
    assert (some.without, settings.ranks, some.made) == (["host7.site"], 2, 2)
    assert not some.another(not_started), "there is nobody left to suspect"


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (ended(**raised("HostsChangedError")), "its hosts have changed"),
        (ended(started=False, code=127, problem="cannot start 'x'"), "it could not be started"),
    ],
)
def test_what_another_start_cannot_mend(tmp_path: Path, job: Job, why: str) -> None:
    some = restarts(3, tmp_path)
    assert not some.another(job)
    assert (some.refused, some.made) == (why, 0)


def test_an_interrupted_job_stays_ended(tmp_path: Path) -> None:
    job = ended(signal=9)
    job.interrupted_by = 2
    assert not restarts(3, tmp_path).another(job)
