"""Run a script on ranks and read what each of them hands back."""

import json
import sys
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranktest.job import Job, Launcher, RanksFailed, RanksHang, launch_command

__all__ = ["RanksResult", "run_ranks"]

PRELUDE = "from onrank import rank_number, result\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksResult:
    """How a launch went."""

    ranks: int
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    by_rank: dict[int, Any]
    """What each rank that called `result(value)` gave."""

    @property
    def results(self) -> list[Any]:
        """The values of all ranks, in the order of ranks."""
        silent = [rank for rank in range(self.ranks) if rank not in self.by_rank]
        if silent:
            raise RanksFailed(f"ranks {silent} of {self.ranks} gave no result()\n{self.stderr}")
        return [self.by_rank[rank] for rank in range(self.ranks)]


def run_ranks(
    n: int,
    script: str | Path,
    *,
    timeout: float = 150.0,
    env: Mapping[str, str] | None = None,
    launcher: Launcher = "mpiexec",
    launcher_args: Sequence[str] = (),
    within: Callable[[Sequence[str]], list[str]] = list,
    args: Sequence[str] = (),
    cwd: Path | None = None,
    expect: int | None = 0,
) -> RanksResult:
    """Run `script`, Python text or a file, on `n` ranks; text may call `result(value)`.

    `expect` is the exit code that counts as success, None for any. A job that outlives `timeout` seconds, or
    leaves processes or shared memory behind, fails whatever is expected. `cwd` defaults to a directory that is
    removed afterwards. `within` turns a command into one that runs it elsewhere, such as on the head of a network.
    """
    with tempfile.TemporaryDirectory(prefix="farandole-test-") as directory:
        workdir = Path(directory)
        command = within([*launch_command(launcher, n, launcher_args), *_python(script, workdir), *args])
        with Job(command, launcher=launcher, workdir=workdir, cwd=cwd or workdir, env=env or {}) as job:
            if not job.wait(timeout):
                living = job.living()
                job.kill()
                job.leftovers()
                told = f"{_said(job)} did not end within {timeout:g} s; alive: {'; '.join(living)}"
                raise RanksHang(told + job.output(), living)
            return _checked(job, n, expect)


def _checked(job: Job, ranks: int, expect: int | None) -> RanksResult:
    assert job.returncode is not None
    left = job.leftovers()
    if left:
        raise RanksFailed(f"{_said(job)} left behind: {'; '.join(left)}{job.output()}")
    if expect is not None and job.returncode != expect:
        raise RanksFailed(
            f"{_said(job)} ended with exit code {job.returncode}, expected {expect}{job.output()}"
        )
    return RanksResult(
        ranks=ranks, returncode=job.returncode, stdout=job.stdout, stderr=job.stderr, seconds=job.seconds,
        by_rank={int(path.name.split(".")[1]): json.loads(path.read_text()) for path in job.workdir.glob("rank.*.json")},
    )  # fmt: skip


def _python(script: str | Path, workdir: Path) -> list[str]:
    if isinstance(script, str):
        (workdir / "script.py").write_text(PRELUDE + textwrap.dedent(script))
        script = workdir / "script.py"
    return [sys.executable, str(script)]


def _said(job: Job) -> str:
    return " ".join(job.command)
