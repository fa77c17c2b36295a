"""Whether a job that failed is started again, and on which hosts."""

from __future__ import annotations

from farandole.launch.job import Job
from farandole.launch.ranks import Rank
from farandole.launch.settings import LaunchSettings
from farandole.launch.verdict import last_error_line

__all__ = ["Restarts"]


class Restarts:
    """Counts them, sees where another would be of no use, and leaves out hosts that are gone."""

    def __init__(self, settings: LaunchSettings) -> None:
        self.made = 0
        self.refused = ""
        """Why a job is not started again although it may be; empty otherwise."""
        self.without: list[str] = []
        """The hosts that the next start leaves out for the first time."""
        self._settings = settings
        self._suspects: set[str] = set()
        self._last: tuple[str, str] | None = None

    def another(self, job: Job) -> bool:
        """Whether to start once more after this end; each True is one restart made."""
        self.without = []
        if job.interrupted_by or self.made == self._settings.restarts:
            return False
        again = self._without_suspects() if job.problem else self._worthwhile(job)
        self.made += again
        return again

    def _without_suspects(self) -> bool:
        """A job that could not even be started may do without the hosts whose ranks were lost the last time."""
        self.without = self._settings.leave_out(self._suspects)
        return bool(self.without)

    def _worthwhile(self, job: Job) -> bool:
        cause = job.cause
        if cause is None:
            return False
        self.refused = self._useless(cause, job)
        if not self.refused:
            self.without = self._settings.leave_out(job.silent_hosts)
            self._suspects = _lost_without_a_word(cause.place.host, job)
        return not self.refused

    def _useless(self, cause: Rank, job: Job) -> str:
        ended = cause.ended
        if cause.started is None:
            return "it could not be started"
        if ended is not None and ended.exception is not None and ended.exception.type == "HostsChangedError":
            return "its hosts have changed"
        last, self._last = self._last, (cause.how(), last_error_line(cause))
        came_from_outside = ended is None or ended.signal or ended.problem
        came_further = self._last != last or any(rank.ended.checkpoints for rank in job.ranks.values() if rank.ended)
        return "" if came_from_outside or came_further else "it failed as before, without a new commit or checkpoint"


def _lost_without_a_word(host: str, job: Job) -> set[str]:
    """The host it began with, if all its workers were lost: killed, or the host is gone. mpiexec then ends the others."""
    endings = [rank.ended for rank in job.ranks.values() if rank.place.host == host]
    return {host} if all(ended is not None and ended.problem for ended in endings) else set()
