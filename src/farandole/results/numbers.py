"""Numbers as people read them: three digits that mean something, a unit, and a dash for what is not known."""

from __future__ import annotations

import math

__all__ = ["UNKNOWN", "bytes_text", "count", "number", "percent", "plain", "prefix_for", "quantity", "seconds", "times"]

UNKNOWN = "–"
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
_THIN = "\u202f"


def number(value: float | None, digits: int = 3) -> str:
    """With `digits` that count, never an exponent between a millionth and a trillion."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -7 < magnitude < 12:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - magnitude)
    rounded = round(value, decimals)
    if rounded and math.floor(math.log10(abs(rounded))) > magnitude:
        decimals = max(0, decimals - 1)
    return f"{rounded:,.{decimals}f}"


def plain(value: float) -> str:
    """A tick or a setting: no digits that say nothing."""
    if value and abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.10g}" if value < 1e10 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 5_400:
        return f"{number(value / 3600)}{_THIN}h"
    if 0 < abs(value) < 1:
        return quantity(value, "s")
    return f"{number(value)}{_THIN}s"


def quantity(value: float | None, unit: str) -> str:
    """With the prefix that leaves one to three digits before the point."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return f"0{_THIN}{unit}"
    scale, prefix = prefix_for(value)
    return f"{number(value / scale)}{_THIN}{prefix}{unit}"


def prefix_for(value: float) -> tuple[float, str]:
    """A factor and its prefix, such that `value` over the factor has one to three digits before the point."""
    return next(((scale, prefix) for scale, prefix in _PREFIXES if abs(value) >= scale * 0.9995), (1e-6, "µ"))


def bytes_text(value: float | None) -> str:
    return quantity(value, "B")


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 1; below 1% with the digits that keep it from being 0."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    if 0 < abs(share) < 0.01:
        return f"{100 * share:.2g}%"
    return f"{100 * share:.{digits}f}%"


def times(factor: float | None) -> str:
    return UNKNOWN if factor is None or not math.isfinite(factor) else f"{number(factor, 3)}×"


def count(how_many: int, what: str, plural: str | None = None) -> str:
    return f"{how_many:,} {what if how_many == 1 else plural or what + 's'}"
