"""Elastic states in one process: what is saved, what is on disk, and when a job is started again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farandole.elastic import ObjectState
from farandole.elastic.commits import Commits, clear, count
from farandole.elastic.hosts import change_of_hosts
from farandole.errors import CommitError
from farandole.launch.hosts import Host, parse_hosts
from farandole.launch.job import Job
from farandole.launch.link import Link
from farandole.launch.messages import Ended, Place, RankException, Started
from farandole.launch.ranks import Rank
from farandole.launch.restarts import Restarts
from farandole.launch.settings import LaunchSettings


def alone(**values: Any) -> ObjectState:
    return ObjectState(bcast_object=lambda value, *_: value, get_rank=lambda: 0, **values)


def committed(folder: Path, times: int) -> list[str]:
    """The values 1 to `times`, committed; the names of the files that are there now."""
    commits = Commits(folder)
    for value in range(1, times + 1):
        commits.write({"epoch": value}, ranks=2)
    return names(folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    assert committed(tmp_path / "new", 4) == ["run0.00000003.commit", "run0.00000004.commit"]
    assert Commits(tmp_path / "new").newest(pytest.fail) == (4, 2, {"epoch": 4})


@pytest.mark.parametrize("cut", [0, 5, 30, -1, -60])
def test_a_commit_that_was_cut_off_is_named_and_the_one_before_is_used(tmp_path: Path, cut: int) -> None:
    committed(tmp_path, 3)
    last = tmp_path / "run0.00000003.commit"
    last.write_bytes(last.read_bytes()[:cut])
    said: list[str] = []
    commits = Commits(tmp_path)
    assert commits.newest(said.append) == (2, 2, {"epoch": 2})
    assert len(said) == 1 and f"{last} is cut off" in said[0]
    commits.write({"epoch": 9}, ranks=2)
    assert names(tmp_path) == ["run0.00000002.commit", "run0.00000004.commit"], "the good one before is kept"


def test_a_single_changed_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    committed(tmp_path, 2)
    last = tmp_path / "run0.00000002.commit"
    whole = last.read_bytes()
    for at in range(len(whole)):
        last.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        found = Commits(tmp_path).newest(lambda _: None)
        assert found is not None and found.number == 1, f"byte {at}"


def test_a_full_disk_is_an_error_that_keeps_the_last_commit(tmp_path: Path) -> None:
    commits = Commits(tmp_path)
    commits.write({"epoch": 1}, ranks=2)
    (tmp_path / "run0.part").symlink_to("/dev/full")
    with pytest.raises(CommitError, match=r"commit 2 could not be written to .*: No space left on device; commit 1 is"):
        commits.write({"epoch": 2}, ranks=2)
    assert names(tmp_path) == ["run0.00000001.commit"]
    assert commits.write({"epoch": 2}, ranks=2) == 2


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    committed(tmp_path, 1)
    (tmp_path / "run0.part").write_bytes(b"half")
    assert committed(tmp_path, 1) == ["run0.00000002.commit"]


def test_every_elastic_function_of_a_script_has_its_own(tmp_path: Path) -> None:
    for run in (0, 1):
        Commits(tmp_path, run).write({"run": run}, ranks=1)
    found = [Commits(tmp_path, run).newest(pytest.fail) for run in (0, 1, 2)]
    assert [commit and commit.values["run"] for commit in found] == [0, 1, None]
    assert count(tmp_path) == 2


def test_clearing_removes_commits_only(tmp_path: Path) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    committed(mine, 2)
    committed(shared, 2)
    (shared / "run.json").write_text("{}")
    for folder in (mine, shared, tmp_path / "absent"):
        clear(folder)
    assert not mine.exists()
    assert names(shared) == ["run.json"]


def test_a_commit_of_another_state_says_which_names_differ(tmp_path: Path) -> None:
    committed(tmp_path, 1)
    with pytest.raises(CommitError, match="holds epoch, the state has batch, epoch"):
        alone(epoch=0, batch=0).resume(Commits(tmp_path), pytest.fail)


class Gone:
    """Deleted before it is read back, as a script's own classes can be."""


def test_a_commit_whose_classes_are_gone_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import farandole.elastic.commits as module

    monkeypatch.setattr(module, "Gone", Gone, raising=False)
    monkeypatch.setattr(Gone, "__module__", module.__name__)
    Commits(tmp_path).write(Gone(), ranks=1)
    monkeypatch.delattr(module, "Gone")
    with pytest.raises(CommitError, match=r"is whole, but .* cannot read it back: AttributeError.*Gone"):
        Commits(tmp_path).newest(pytest.fail)


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
    moving = restarts(5, tmp_path)
    for epoch in range(3):
        Commits(tmp_path).write({"epoch": epoch}, ranks=2)
        assert moving.another(ended(**raised("ValueError")))
    assert restarts(5, tmp_path).another(ended(**raised("ValueError")))


def test_a_checkpoint_is_as_good_as_a_commit(tmp_path: Path) -> None:
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
