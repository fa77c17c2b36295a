"""What users can get wrong, by name."""

__all__ = [
    "CheckpointError",
    "CommitError",
    "DataError",
    "EngineStopped",
    "FarandoleError",
    "HorovodInternalError",
    "HostsChangedError",
    "LaunchError",
    "MismatchError",
    "NotInitializedError",
    "PlanMismatchError",
    "RankFailedError",
    "SettingsError",
    "StalledError",
    "TrainingError",
    "WorldMismatchError",
]


class FarandoleError(RuntimeError):
    """Base of every error this package raises on its own account."""


class NotInitializedError(FarandoleError, ValueError):
    """A call that needs `init()` came before it."""


class SettingsError(FarandoleError, ValueError):
    """A setting, option or argument that cannot work."""


class WorldMismatchError(FarandoleError):
    """The launcher started N ranks, MPI sees another number."""


class MismatchError(FarandoleError):
    """Ranks called the same collective with arguments that do not fit together."""


class PlanMismatchError(MismatchError):
    """Ranks wrap different models: their gradient plans differ."""


class HorovodInternalError(FarandoleError):
    """A collective that failed on account of other ranks. Horovod's name: its scripts catch it."""


class RankFailedError(HorovodInternalError):
    """Another rank exited or died while this one waited for it."""


class StalledError(HorovodInternalError):
    """A collective waited longer than the stall limit allows."""


class EngineStopped(HorovodInternalError):
    """The engine was shut down while an operation was under way."""


class LaunchError(FarandoleError):
    """Ranks could not be started."""


class DataError(FarandoleError):
    """A file whose content is not what was expected."""


class TrainingError(FarandoleError):
    """A training that cannot go on: its loss is no number, or its ranks have come apart."""


class CheckpointError(FarandoleError):
    """A checkpoint that cannot be written, or not be used."""


class CommitError(FarandoleError):
    """A commit of an elastic run that cannot be written, or not be used."""


class HostsChangedError(FarandoleError):
    """The hosts of a running job have changed: it goes on only by being started again."""
