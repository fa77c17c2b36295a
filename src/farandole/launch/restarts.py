"""Whether a job that failed is started again."""

from __future__ import annotations

from farandole.launch.job import Job
from farandole.launch.ranks import Rank
from farandole.launch.settings import LaunchSettings
from farandole.launch.verdict import last_error_line

__all__ = ["Restarts"]


class Restarts:
    """Counts them, and sees where another would be of no use."""

    def __init__(self, settings: LaunchSettings) -> None:
        self.made = 0
        self.refused = ""
        """Why a job is not started again although it may be; empty otherwise."""
        self._allowed = settings.restarts
        self._commit_dir = settings.commit_dir
        self._last: tuple[str, str, int] | None = None

    def another(self, job: Job) -> bool:
        """Whether to start once more after this end; each True is one restart made."""
        cause = job.cause
        if cause is None or job.problem or job.interrupted_by or self.made == self._allowed:
            return False
        self.refused = self._useless(cause)
        self.made += not self.refused
        return not self.refused

    def _useless(self, cause: Rank) -> str:
        ended = cause.ended
        if cause.started is None:
            return "it could not be started"
        if ended is not None and ended.exception is not None and ended.exception.type == "HostsChangedError":
            return "its hosts have changed"
        last, self._last = self._last, (cause.how(), last_error_line(cause), self._commits())
        came_from_outside = ended is None or ended.signal or ended.problem
        return "" if came_from_outside or self._last != last else "it failed as before, without a new commit"

    def _commits(self) -> int:
        from farandole.elastic.commits import count

        return 0 if self._commit_dir is None else count(self._commit_dir)
