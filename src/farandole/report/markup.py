"""HTML and SVG as text: what is not marked as markup is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Markup", "join", "tag"]

_EMPTY = frozenset({"br", "col", "meta", "hr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """An element. `class_` is class, `_` in names is `-`; attributes that are None are left out."""
    told = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None)
    if name in _EMPTY:
        return Markup(f"<{name}{told}>")
    content = join(children)
    # HTML does not know elements that close themselves, SVG within HTML does.
    return Markup(f"<{name}{told}>{content}</{name}>" if content or name not in _SHAPES else f"<{name}{told}/>")


_SHAPES = frozenset({"rect", "line", "path", "circle", "polyline", "use"})


def join(parts: Iterable[str | None]) -> Markup:
    return Markup("".join(_text(part) for part in parts if part is not None))


def _text(part: str) -> str:
    return part if isinstance(part, Markup) else html.escape(part, quote=False)


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return html.escape(value) if isinstance(value, str) else f"{round(value, 1):g}" if abs(value) < 1e5 else f"{value:.0f}"
