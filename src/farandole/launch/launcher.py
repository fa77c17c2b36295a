"""`farandole launch`: start a job's ranks, see them through, clean up, and say how it went."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from farandole.errors import LaunchError, SettingsError
from farandole.launch.channel import Switchboard
from farandole.launch.commits import clear
from farandole.launch.environment import usable_cores
from farandole.launch.hosts import machinefile, total_slots
from farandole.launch.job import Job
from farandole.launch.jobdir import JOB_DIR, JobDir
from farandole.launch.messages import Orders
from farandole.launch.mpiexec import require_mpiexec
from farandole.launch.output import Files, OutputSink, Terminal, has_room
from farandole.launch.place import without_mpi
from farandole.launch.ranks import Rank, signal_name
from farandole.launch.record import write_record
from farandole.launch.restarts import Restarts
from farandole.launch.segments import remove_abandoned
from farandole.launch.settings import LaunchSettings
from farandole.launch.verdict import failure_block
from farandole.processes.signals import Signals

__all__ = ["launch"]

_TELL_S = 1.0
_WORKER = Path(__file__).with_name("start_worker.py")


def launch(settings: LaunchSettings, sink: OutputSink | None = None) -> int:
    """Run a job to its end; the exit code to pass on. The ranks' output goes to `sink`, where one is given."""
    return _Launch(settings, sink).run()


class _Launch:
    def __init__(self, settings: LaunchSettings, sink: OutputSink | None) -> None:
        self._settings = settings
        self._environment = _job_environment(os.environ)
        self._command = _runnable(settings, self._environment)
        self._mpiexec = require_mpiexec(settings.ranks) if settings.needs_mpiexec else None
        self._files = None if settings.output_dir is None else Files(settings.output_dir, settings.ranks)
        self._sink: OutputSink = sink or self._files or Terminal()
        # One rank alone, unless its output goes elsewhere, has the terminal to itself.
        self._capture = settings.needs_mpiexec or not isinstance(self._sink, Terminal)
        self._restarts = Restarts(settings)
        self._timeline_before = _written(settings.timeline)

    def run(self) -> int:
        self._announce()
        started_s = time.time()
        job = self._see_through()
        while self._restarts.another(job):
            self._blame(job)
            _tell(f"starting again ({self._restarts.made} of {self._settings.restarts} restarts){self._remaining()}")
            job = self._see_through()
        code = _exit_code(job)
        self._merge_timeline(failed=code != 0)
        if code == 0:
            self._forget_commits()
        self._record(job, code, started_s)
        self._conclude(job, code, time.time() - started_s)
        return code

    def _see_through(self) -> Job:
        jobdir = JobDir.create()
        try:
            with Signals() as signals:
                board = Switchboard(jobdir.path / "launcher", self._remote_hosts(), _tell)
                job = self._start(board, jobdir, signals)
                try:
                    job.run()
                    _note_ranks(job)
                finally:
                    segments = jobdir.segments()
                    job.leave()
                    remove_abandoned(segments)
                job.finish_output()
        finally:
            jobdir.remove()
        return job

    def _start(self, board: Switchboard, jobdir: JobDir, signals: Signals) -> Job:
        return Job(
            size=self._settings.ranks,
            orders=self._orders(),
            board=board,
            process=self._start_process(board, jobdir),
            sink=self._sink,
            signals=signals,
            start_timeout_s=self._settings.start_timeout_s,
            grace_s=self._settings.grace_s,
        )

    def _orders(self) -> Orders:
        settings = self._settings
        return Orders(
            command=self._command,
            variables=settings.rank_variables() | {"FARANDOLE_RESTART": str(self._restarts.made)},
            threads=settings.threads,
            bind=settings.bind,
            tune=settings.tune,
            capture=self._capture,
            grace_s=settings.grace_s,
        )

    def _start_process(self, board: Switchboard, jobdir: JobDir) -> subprocess.Popen[bytes]:
        environment = self._environment | board.variables() | {JOB_DIR: str(jobdir.path)}
        worker = [sys.executable, "-I", "-S", str(_WORKER)]
        if self._mpiexec is None:
            return subprocess.Popen(worker, env=environment)
        environment |= {name: v for name, v in self._mpiexec.variables().items() if name not in environment}
        words = self._mpiexec.command(self._settings.ranks, self._machinefile(jobdir), environment, worker)
        self._say(f"starting {shlex.join(words)}")
        # mpiexec would read all of our standard input, a batch script's rest included, and MPICH's ends when
        # rank 0 does not keep up with it.
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def _machinefile(self, jobdir: JobDir) -> Path | None:
        if self._settings.local or self._mpiexec is None:
            return None
        path = jobdir.path / "hosts"
        path.write_text(machinefile(self._settings.hosts, self._mpiexec.slots_word))
        return path

    def _remote_hosts(self) -> list[str]:
        return [] if self._settings.local else [host.name for host in self._settings.hosts]

    # Telling

    def _announce(self) -> None:
        ranks, hosts = self._settings.ranks, self._settings.hosts
        slots, what = (total_slots(hosts), "slots") if hosts else (usable_cores(), "cores")
        if ranks > slots:
            _tell(f"{ranks} ranks share {slots} {what if slots > 1 else what[:-1]}")
        if self._files is not None:
            _tell(f"output goes to {self._settings.output_dir}/rank.*.out and rank.*.err")

    def _say(self, text: str) -> None:
        if self._settings.verbose:
            _tell(text)

    def _merge_timeline(self, *, failed: bool) -> None:
        """Where rank 0 has not done it. Of ranks that failed, more is told than that they recorded nothing."""
        if self._settings.timeline is None and not {"FARANDOLE_TIMELINE", "HOROVOD_TIMELINE"} & os.environ.keys():
            return
        from farandole.observe.timeline import merge_parts, path_from_environment

        path = self._settings.timeline or path_from_environment()
        if path is None:
            return
        try:
            merged = merge_parts(path.absolute())
        except Exception as error:  # how the job ended is still to be told
            _tell(str(error))
            return
        nothing = merged is None and self._settings.timeline is not None and _written(path) == self._timeline_before
        if nothing and self._settings.local and not failed:  # other hosts may have other disks
            _tell("no rank has recorded a timeline: call farandole.init() in the program, or use farandole observe")

    def _forget_commits(self) -> None:
        """The next job starts from the beginning."""
        folder = self._settings.commit_dir
        if folder is not None:
            clear(folder)

    def _record(self, job: Job, code: int, started_s: float) -> None:
        if self._settings.output_dir is not None and self._files is not None:
            write_record(
                self._settings.output_dir / "run.json", settings=self._settings, mpiexec=self._mpiexec,
                ranks=job.ranks.values(), cause=job.cause, exit_code=code, started_s=started_s,
                ended_s=time.time(), files=self._files.paths, restarts=self._restarts.made,
            )  # fmt: skip

    def _conclude(self, job: Job, code: int, duration_s: float) -> None:
        if job.problem:
            raise LaunchError(self._explain(job))
        if job.interrupted_by == signal.SIGPIPE:
            self._say("nobody reads the output: all ranks were ended")
        elif job.interrupted_by:
            _tell(f"{signal_name(job.interrupted_by)}: all ranks were ended")
        elif job.cause is not None:
            self._blame(job)
            if self._restarts.refused:
                _tell(f"not started again: {self._restarts.refused}")
        else:
            self._say(f"{self._settings.ranks} ranks ended with exit code {code} after {duration_s:.1f} s")

    def _remaining(self) -> str:
        lost, ranks = self._restarts.without, self._settings.ranks
        return f" without {', '.join(lost)}, on {ranks} rank{'s' * (ranks > 1)}" if lost else ""

    def _blame(self, job: Job) -> None:
        if job.problem:
            _tell(job.problem)
        elif job.cause is not None:
            repeat = self._settings.command_line()
            _tell(failure_block(job.cause, job.ranks.values(), self._logs(job.cause), repeat))

    def _explain(self, job: Job) -> str:
        todo = [f"repeat  {self._settings.command_line()}", "check   farandole doctor"]
        return "\n  ".join([job.problem, *todo])

    def _logs(self, cause: Rank) -> list[Path]:
        if self._files is None:
            return []
        return [self._files.paths[cause.number, stream] for stream in ("stderr", "stdout")]


def _note_ranks(job: Job) -> None:
    """For whoever samples power around us: its joules are to be of the ranks, not of what is done before and after."""
    if job.ranks_ns is not None and "FARANDOLE_POWER_PHASES" in os.environ:
        from farandole.observe.power.recording import RANKS, tell_phase

        tell_phase(RANKS, *job.ranks_ns)


def _written(path: Path | None) -> int | None:
    """When a file was written; None where there is none."""
    try:
        return None if path is None else path.stat().st_mtime_ns
    except OSError:
        return None


def _exit_code(job: Job) -> int:
    if job.interrupted_by:
        return 128 + job.interrupted_by
    if job.problem:
        return 1
    return 0 if job.cause is None else job.cause.exit_code


def _job_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Where ranks find the programs of the environment farandole is installed in, activated or not."""
    environment = without_mpi(base)
    beside = str(Path(sys.executable).parent)
    search = environment.get("PATH", os.defpath)
    if beside not in search.split(os.pathsep):
        environment["PATH"] = os.pathsep.join([beside, search])
    return environment


def _runnable(settings: LaunchSettings, environment: Mapping[str, str]) -> list[str]:
    """The command, with this Python before a bare script; an error where it is not to be found."""
    program = settings.command[0]
    if program.endswith(".py") and Path(program).is_file() and not os.access(program, os.X_OK):
        return [sys.executable, *settings.command]
    if settings.local and shutil.which(program, path=environment["PATH"]) is None:
        raise SettingsError(
            f"{program!r} is not a program: no such file, or it may not be executed. "
            f"Type e.g. farandole launch -n {settings.ranks} -- python train.py"
        )
    return settings.command


def _tell(text: str) -> None:
    # A terminal that is closed or takes nothing must not hide how the job ended from whoever reads the exit code.
    with contextlib.suppress(BrokenPipeError):
        if has_room(sys.stderr, _TELL_S):
            print(f"farandole: {text}", file=sys.stderr, flush=True)
