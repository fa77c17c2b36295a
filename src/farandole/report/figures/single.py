"""One run: the time of every rank by phase, and how it learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.observe.analysis import spread_out
from farandole.report.figures import Figure, missing
from farandole.report.figures.bars import Bar, stacked_bars
from farandole.report.figures.lines import Axes, Line, Mark, line_chart
from farandole.results.numbers import count, number
from farandole.results.schema import PHASES

__all__ = ["history_figures", "phases_figure"]

_MOST_RANKS = 12


def phases_figure(record: Mapping[str, Any]) -> Figure:
    title = "Where the time of every rank went"
    seconds = {
        name: found["ranks"] for name, found in (record.get("seconds") or {}).items() if name in PHASES and found.get("ranks")
    }
    if not seconds:
        return missing("phases", title, "run.json has no seconds by phase and rank.", full=True)
    ranks = range(max(map(len, seconds.values())))
    shown = spread_out(ranks, _MOST_RANKS)
    more = f" {len(shown)} of {len(ranks)} ranks are drawn." if len(shown) < len(ranks) else ""
    bars = [
        Bar(label=f"rank {rank}", parts={name: values[rank] for name, values in seconds.items() if rank < len(values)})
        for rank in shown
    ]
    return Figure(
        name="phases", title=title, full=True,
        caption=f"Ranks wait for each other at the broadcast and in training: a slow reader shows as others' waiting.{more}",
        draw=lambda width: stacked_bars(bars, width, title),
    )  # fmt: skip


def history_figures(record: Mapping[str, Any]) -> list[Figure]:
    """A chart a measure (loss, accuracy, ...): of training, validation and test data, epoch by epoch."""
    epochs = record.get("epochs") or []
    if len(epochs) < 2:
        return [
            missing("history", "How it learned", f"A line needs two epochs; the run has {count(len(epochs), 'epoch')}.", full=True)
        ]
    names = dict.fromkeys(name.removeprefix("val_").removeprefix("test_") for name in epochs[0] if not _is_about_time(name))
    first = ("loss", record.get("metric"))
    return [_history(epochs, name) for name in sorted(names, key=lambda name: first.index(name) if name in first else len(first))]


def _is_about_time(name: str) -> bool:
    return name in ("epoch", "seconds", "rate") or name.endswith("_s")


def _history(epochs: Sequence[Mapping[str, Any]], name: str) -> Figure:
    lines = [
        line
        for label, key, kind in (("training", name, "s1"), ("validation", f"val_{name}", "s2"), ("test", f"test_{name}", "s3"))
        if (line := _line(epochs, label, key, kind)).marks
    ]
    words = name.replace("_", " ")
    axes = Axes(
        x_label="epoch", y_label=words, x_log=False, y_log=False, height=260.0, words=f"{words} by epoch",
        x_ticks=_epoch_ticks(len(epochs)),
    )  # fmt: skip
    return Figure(
        name=f"history-{name}", title=f"{words.capitalize()} by epoch", draw=lambda width: line_chart(lines, axes, width)
    )


def _line(epochs: Sequence[Mapping[str, Any]], label: str, key: str, kind: str) -> Line:
    marks = [
        Mark(x=float(epoch["epoch"]), y=float(value), words=f"epoch {epoch['epoch']}\n{label} {number(value, 4)}")
        for epoch in epochs
        if isinstance(value := epoch.get(key), (int, float)) and abs(value) < 1e30
    ]
    return Line(label=label, kind=kind, marks=marks, style="thin")


def _epoch_ticks(epochs: int) -> list[float]:
    step = max(1, -(-epochs // 10))
    return [float(epoch) for epoch in range(1, epochs + 1, step)]
