"""The page: one HTML file with its style, its script and the data in it. Nothing is loaded from anywhere."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from farandole import __version__
from farandole.report.content import Content
from farandole.report.figures import Figure
from farandole.report.markup import Markup, join, tag
from farandole.report.traces import Trace
from farandole.report.trust import Item
from farandole.results.numbers import bytes_text, count
from farandole.results.reading import Study
from farandole.results.runs import command_of, training_api
from farandole.results.verdict import Verdict

__all__ = ["page_of"]

_HALVES = {"wide": 540.0, "narrow print": 342.0}
_FULLS = {"wide": 1120.0, "middle print": 700.0, "narrow": 342.0}
"""Widths that figures are drawn for, by class; page.css shows one of them, so that text is never scaled much."""
_KINDS = {
    "strong": "Strong scaling",
    "weak": "Weak scaling",
    "batch": "Batch sizes",
    "lr": "Learning rates",
    "loaders": "Loaders",
    "run": "Run",
}


def page_of(content: Content) -> str:
    study = content.study
    kind = _KINDS.get(study.kind, study.kind.capitalize())
    body = tag(
        "main",
        tag("header", tag("p", f"{kind} · Farandole", class_="kind"), tag("h1", study.title), _verdicts(content.verdicts)),
        _trusts(content),
        _notes(content.notes),
        tag("div", *(_figure(figure) for figure in content.figures), class_="figures"),
        *(tag("section", tag("h2", title), table) for title, table in content.tables),
        _about(study, content.other),
    )
    data = _embedded(content)
    return "".join(
        [
            "<!doctype html>\n",
            tag("html", _head(f"{study.title} · {kind}"), tag("body", body, data, tag("script", Markup(_file("page.js")))), lang="en"),
            "\n",
        ]
    )


def _head(title: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"farandole {__version__}"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_file("page.css"))),
    )


def _file(name: str) -> str:
    return (files("farandole.report") / name).read_text(encoding="utf-8")


def _verdicts(verdicts: Sequence[Verdict]) -> Markup:
    """One headline; everything else in normal type below it."""
    first, *rest = verdicts
    below = [*first.caveats, *(" ".join([one.headline, *one.caveats]) for one in rest)]
    return join([tag("p", first.headline, class_="verdict"), tag("ul", *(tag("li", words) for words in below), class_="caveats") if below else None])


def _trusts(content: Content) -> Markup:
    sides = zip(_sides(content.study, content.other), (content.trust, content.trust_after))
    return join(part for (head, _), items in sides for part in (head, _trust(items)))


def _sides(study: Study, other: Study | None) -> list[tuple[Markup | None, Study]]:
    """Each study, below its name where there are two."""
    if other is None:
        return [(None, study)]
    return [(tag("p", f"{side}: {one.name}", class_="side"), one) for side, one in (("Before", study), ("After", other))]


def _trust(items: Sequence[Item]) -> Markup:
    chips = [
        tag("div", tag("dt", item.name), tag("dd", item.value), tag("p", item.words, class_="why"), class_=f"chip {item.level}", tabindex="0")
        for item in items
    ]
    return tag("dl", *chips, class_="trust", aria_label="How far to believe this page")


def _notes(notes: Sequence[str]) -> Markup | None:
    if not notes:
        return None
    shown, rest = notes[:4], notes[4:]
    more = tag("details", tag("summary", f"{len(rest)} more"), tag("ul", *(tag("li", note) for note in rest))) if rest else None
    return tag("aside", tag("ul", *(tag("li", note) for note in shown)), more, class_="notes")


def _figure(figure: Figure) -> Markup:
    head = tag("figcaption", tag("h2", figure.title), tag("p", figure.caption) if figure.caption else None)
    kind = "full" if figure.full else None
    if figure.draw is None and not figure.reason:
        return tag("h2", figure.title, class_="part full")
    if figure.draw is None:
        return tag("figure", head, tag("p", figure.reason, class_="missing"), id=f"figure-{figure.name}", class_=kind)
    sizes = _FULLS if figure.full else _HALVES
    drawn = [tag("div", figure.draw(width), class_=name) for name, width in sizes.items()]
    return tag("figure", head, *drawn, id=f"figure-{figure.name}", class_=kind)


def _about(study: Study, other: Study | None) -> Markup:
    return tag(
        "section",
        tag("h2", "Made with"),
        *(part for head, one in _sides(study, other) for part in (head, _made_with(one))),
        _command("The page", shlex.join(["farandole", "report", *(str(one.folder) for one in (study, other) if one)])),
        tag("p", "The data behind every figure is in this file, as JSON, in the element with the id ", tag("code", "data"), ".", class_="quiet"),
        class_="about",
    )


def _made_with(study: Study) -> Markup:
    commands = [command_of(study.about)] if study.is_run else [*(made.get("command") for made in study.makings), study.command]
    facts = tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in _facts(study)), class_="facts")
    return join([*(_command("Again", command) for command in dict.fromkeys(commands)), facts])


def _command(label: str, command: str | None) -> Markup:
    if not command:
        return tag("p", f"{label}: the command is not recorded.", class_="missing")
    copy = tag("button", "Copy", type="button", class_="copy needs-script", data_text=command)
    # Lines break between words only, not at the hyphens of options.
    words = [tag("span", word) for word in command.split(" ")]
    spaced = join(part for word in words for part in (word, " "))
    return tag("div", tag("p", label), tag("pre", tag("code", spaced)), copy, class_="command")


def _facts(study: Study) -> list[tuple[str, str]]:
    about = study.about
    machines = [_machine_facts(made) for made in study.makings]
    facts = {
        "workload": " ".join(str(about[name]) for name in ("benchmark", "preset") if about.get(name)),
        "trained by": training_api({**about, **(about.get("fixed") or {})}),
        "source": about.get("source"),
        "when": about.get("created") or about.get("started"),
        **{name: "; ".join(dict.fromkeys(found for one in machines if (found := one[name]))) for name in machines[0]},
        "base case": ", ".join(f"{name} {value}" for name, value in (about.get("base") or {}).items()),
    }
    return [(name, str(value)) for name, value in facts.items() if value]


def _machine_facts(made: Mapping[str, Any]) -> dict[str, str | None]:
    """Of one time at which it was typed: another may be on another machine, with other versions."""
    environment, git = made.get("environment") or {}, made.get("git") or {}
    packages = {name: version for name, version in (environment.get("packages") or {}).items() if version}
    return {
        "commit": f"{git['commit']}{', with changes' if git.get('changed') else ''}" if git.get("commit") else None,
        "processor": _processor(environment),
        "memory": bytes_text(environment["memory_bytes"]) if environment.get("memory_bytes") else None,
        "system": environment.get("system"),
        "Python": environment.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items()),
    }


def _processor(environment: Mapping[str, Any]) -> str | None:
    cpu, cores = environment.get("cpu"), environment.get("cores")
    return f"{cpu}, {count(cores, 'core')}" if cpu and cores else cpu


def _embedded(content: Content) -> Markup:
    trace, after = [*content.traces, None, None][:2]
    data = {
        "about": content.study.about,
        "results": content.study.raw,
        "compared_with": None if content.other is None else {"about": content.other.about, "results": content.other.raw},
        "prediction": None if content.prediction is None else content.prediction.document,
        "trace": _trace(trace),
        "trace_after": _trace(after),
    }
    text = json.dumps(_finite(data), separators=(",", ":"), ensure_ascii=False)
    # "</script" and "<!--" end or change a script element wherever they stand.
    return tag("script", Markup(text.replace("<", "\\u003c")), type="application/json", id="data")


def _trace(trace: Trace | None) -> dict[str, Any] | None:
    if trace is None:
        return None
    return {"ranks": [_without_steps(rank) for rank in trace.ranks], "residual_s": trace.residual_s, "components": trace.components}


def _without_steps(rank: Mapping[str, Any]) -> dict[str, Any]:
    """Steps, and the waits in them, are in the heat map already."""
    return {name: value for name, value in rank.items() if name not in ("steps", "step_counts", "step_wait_s")}


def _finite(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
