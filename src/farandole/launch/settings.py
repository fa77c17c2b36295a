"""What `farandole launch` is asked to do."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farandole.errors import SettingsError
from farandole.launch.command import GRACE_S
from farandole.launch.hosts import Host, all_local, as_option, total_slots

__all__ = ["BINDINGS", "LaunchSettings"]

BINDINGS = ("core", "node", "none")


@dataclass(kw_only=True, slots=True)
class LaunchSettings:
    """A job: a command, how often, where, and under which conditions."""

    command: list[str]
    """What every rank runs."""
    ranks: int = 0
    """How many; 0 takes every slot of `hosts`."""
    hosts: list[Host] = field(default_factory=list)
    """Where; empty means this machine."""
    hostfile: Path | None = None
    """The file that named the hosts; elastic runs look whether it has changed."""
    timeline: Path | None = None
    """The file in which all ranks' timelines end up."""
    power: bool = False
    """Whether the first rank of each node samples power into the timeline."""
    output_dir: Path | None = None
    """One file a rank and stream, and `run.json`, instead of the terminal."""
    threads: int | None = None
    """Threads a rank; None divides a host's cores among its ranks."""
    bind: str = "none"
    """`core`: each rank on its own cores; `node`: on a NUMA node; `none`: where the system likes."""
    tune: bool = True
    """Keep the C library from returning large buffers to the kernel at every step."""
    stall_warning_s: float | None = None
    """After how long a collective that waits is named; None leaves the default."""
    stall_abort_s: float | None = None
    """After how long such a collective ends the job; None means never."""
    stall_check: bool = True
    """Look for collectives that wait too long."""
    fusion_threshold_mb: float | None = None
    """How much is packed into one buffer; None leaves the default."""
    start_timeout_s: float = 120.0
    """How long ranks may take to start."""
    time_limit_s: float | None = None
    """After how long the job should have saved a checkpoint and ended; the ranks see to it."""
    grace_s: float = GRACE_S
    """How long ranks may go on when the launcher was told to end, to save what they have."""
    ends_at: float | None = field(init=False, default=None)
    """When the time limit is over, in seconds since 1970, however often the job is started."""
    restarts: int = 0
    """How often a job that has lost a rank is started again."""
    commit_dir: Path | None = None
    """Where elastic runs keep their commits; None with restarts makes a folder here, for this job alone."""
    verbose: bool = False
    """Say what is started and how it ended."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What else ranks find in their environment."""
    repeat: str = ""
    """What starts this job again, where that is another command than `farandole launch`."""
    _hosts_named: str = field(init=False, default="")
    """Those the user named, some of which may be left out since."""

    def __post_init__(self) -> None:
        if not self.command:
            raise SettingsError(
                "nothing to launch: no command was given. Type e.g. farandole launch -n 2 -- python train.py"
            )
        self._hosts_named = as_option(self.hosts)
        self.ranks = self.ranks or total_slots(self.hosts)
        if self.ranks < 1:
            raise SettingsError(
                f"ranks={self.ranks}: how many ranks? "
                f"Type e.g. farandole launch -n 2 -- {shlex.join(self.command)}"
            )
        if self.bind not in BINDINGS:
            raise SettingsError(f"bind={self.bind!r} is unknown. Use one of {', '.join(BINDINGS)}.")
        self._check_positive()
        self._check_stalls()
        if self.power and self.timeline is None:
            raise SettingsError("--power draws power on the timeline: give --timeline FILE, too.")
        if self.restarts < 0:
            raise SettingsError(f"restarts={self.restarts} is below 0. Leave it out for none.")
        if self.restarts and self.commit_dir is None:
            self.commit_dir = Path(f"farandole-commits-{secrets.token_hex(4)}")
        if self.time_limit_s is not None:
            self.ends_at = time.time() + self.time_limit_s

    def _check_stalls(self) -> None:
        limits = {"--stall-warning": self.stall_warning_s, "--stall-abort": self.stall_abort_s}
        given = [f"{option} {value:g}" for option, value in limits.items() if value is not None]
        if given and not self.stall_check:
            raise SettingsError(f"--no-stall-check and {' and '.join(given)} exclude each other. Leave one out.")

    def _check_positive(self) -> None:
        for name in ("threads", "stall_warning_s", "stall_abort_s", "start_timeout_s", "time_limit_s", "grace_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"{name}={value} is not above 0. Leave it out for the default.")
        if self.fusion_threshold_mb is not None and self.fusion_threshold_mb < 0:
            raise SettingsError(f"fusion_threshold_mb={self.fusion_threshold_mb} is below 0.")

    @property
    def local(self) -> bool:
        """True where all ranks run on this machine."""
        return all_local(self.hosts)

    @property
    def needs_mpiexec(self) -> bool:
        return self.ranks > 1 or not self.local

    def leave_out(self, lost: Collection[str]) -> list[str]:
        """Go on without hosts that are lost, on the ranks the others have slots for; which were left out."""
        left_out = [host.name for host in self.hosts if any(_same_host(host.name, name) for name in lost)]
        remaining = [host for host in self.hosts if host.name not in left_out]
        if not remaining:
            return []
        self.hosts = remaining
        self.ranks = min(self.ranks, total_slots(remaining)) if left_out else self.ranks
        return left_out

    def rank_variables(self) -> dict[str, str]:
        """What ranks are told through their environment, the same for all."""
        variables = {**self.variables, "FARANDOLE_LAUNCHED": "1", "FARANDOLE_LAUNCH_SIZE": str(self.ranks)}
        if self.timeline is not None:
            variables["FARANDOLE_TIMELINE"] = str(self.timeline.absolute())
        if self.power:
            variables["FARANDOLE_TIMELINE_POWER"] = "1"
        if self.ends_at is not None:
            variables["FARANDOLE_ENDS_AT"] = f"{self.ends_at:.3f}"
        if not self.stall_check:
            variables["FARANDOLE_STALL_CHECK_DISABLE"] = "1"
        if self.stall_warning_s is not None:
            variables["FARANDOLE_STALL_CHECK_TIME_SECONDS"] = f"{self.stall_warning_s:g}"
        if self.stall_abort_s is not None:
            variables["FARANDOLE_STALL_SHUTDOWN_TIME_SECONDS"] = f"{self.stall_abort_s:g}"
        if self.fusion_threshold_mb is not None:
            variables["FARANDOLE_FUSION_THRESHOLD"] = str(int(self.fusion_threshold_mb * 1024 * 1024))
        return variables | self._elastic_variables()

    def _elastic_variables(self) -> dict[str, str]:
        variables = {}
        if self.commit_dir is not None:
            variables["FARANDOLE_COMMIT_DIR"] = str(self.commit_dir.absolute())
        if self.hostfile is not None:
            variables["FARANDOLE_HOSTFILE"] = str(self.hostfile.absolute())
            variables["FARANDOLE_HOSTS"] = self._hosts_named
        return variables

    def command_line(self) -> str:
        """The command that starts this job again."""
        if self.repeat:
            return self.repeat
        options = ["-n", str(self.ranks)]
        if self.hosts and ("--hostfile", self.hostfile) not in self._options():
            options += ["--hosts", as_option(self.hosts)]
        options += [word for option, value in self._options() for word in (option, str(value))]
        switches = {
            "--power": self.power,
            "--no-tune": not self.tune,
            "--no-stall-check": not self.stall_check,
            "--verbose": self.verbose,
        }
        options += [option for option, on in switches.items() if on]
        return shlex.join(["farandole", "launch", *options, "--", *self.command])

    def _options(self) -> list[tuple[str, object]]:
        """The options that differ from their default and take a value."""
        all_hosts = as_option(self.hosts) == self._hosts_named
        named = [
            ("--hostfile", self.hostfile if all_hosts else None, None),
            ("--timeline", self.timeline, None),
            ("--output-dir", self.output_dir, None),
            ("--threads", self.threads, None),
            ("--bind", self.bind, "none"),
            ("--stall-warning", self.stall_warning_s, None),
            ("--stall-abort", self.stall_abort_s, None),
            ("--fusion-threshold-mb", self.fusion_threshold_mb, None),
            ("--start-timeout", self.start_timeout_s, 120.0),
            ("--time-limit", self.time_limit_s, None),
            ("--grace", self.grace_s, GRACE_S),
            ("--restarts", self.restarts, 0),
            ("--commit-dir", self.commit_dir, None),
        ]
        return [(option, value) for option, value, default in named if value != default]


def _same_host(named: str, own: str) -> bool:
    """Users may write a name short or in full; hosts call themselves either."""
    return named == own or named.partition(".")[0] == own.partition(".")[0]
