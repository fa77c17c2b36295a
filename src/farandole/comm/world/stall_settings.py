"""When the watchdog warns about a wait, and when it ends one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from farandole.errors import SettingsError

__all__ = ["StallSettings"]


@dataclass(kw_only=True, slots=True)
class StallSettings:
    """Limits on how long a rank waits for others."""

    warn_s: float = 60.0
    """Warn about waits this old; 0 never warns."""
    abort_s: float = 0.0
    """End waits this old with StalledError; 0 never does."""

    @classmethod
    def from_environment(cls) -> StallSettings:
        """FARANDOLE_STALL_* or, for scripts that set them, HOROVOD_STALL_*."""
        if _variable("STALL_CHECK_DISABLE") in ("1", "true", "True"):
            return cls(warn_s=0.0)
        return cls(
            warn_s=_seconds("STALL_CHECK_TIME_SECONDS", 60.0), abort_s=_seconds("STALL_SHUTDOWN_TIME_SECONDS", 0.0)
        )

    def __post_init__(self) -> None:
        if not (self.warn_s >= 0 and self.abort_s >= 0):
            raise SettingsError(f"{self}: seconds must be 0 (never) or more")


def _variable(name: str) -> str | None:
    return os.environ.get(f"FARANDOLE_{name}", os.environ.get(f"HOROVOD_{name}"))


def _seconds(name: str, default: float) -> float:
    text = _variable(name)
    try:
        return float(text) if text else default
    except ValueError:
        raise SettingsError(f"FARANDOLE_{name}={text!r}: give a number of seconds, e.g. 60") from None
