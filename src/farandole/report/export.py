"""Figures of a page as files for a paper: SVG that needs no style sheet, and PDF and PNG made of it.

A figure is drawn as on the page, in light colours. page.css is worked into attributes of its elements, which every program
knows that reads SVG; typst makes the other formats, with text as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from farandole.errors import DataError, SettingsError
from farandole.report.figures import Figure

__all__ = ["FORMATS", "export_figures"]

FORMATS = ("svg", "pdf", "png")
_MARGIN = 4.0
_WIDTH, _FULL_WIDTH = 420.0 - 2 * _MARGIN, 840.0 - 2 * _MARGIN
"""Pixels, for one and for two columns of a paper: on 3.5 and 7 inches text is of 7 points."""
_FONTS = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
_PNG_DPI = 300.0
_TYPST = b'#set page(width: auto, height: auto, margin: 0pt)\n#set document(date: none)\n#image(bytes(sys.inputs.svg), format: "svg")'
_ATTRIBUTES = frozenset({
    "fill", "font-size", "font-weight", "opacity", "paint-order", "shape-rendering", "stroke", "stroke-dasharray", "stroke-linecap",
    "stroke-linejoin", "stroke-width", "text-anchor",
})  # fmt: skip
"""Of what a style sheet can say, that which SVG takes as attributes; the rest is for screens."""


def export_figures(folder: Path, other: Path | None, out: Path, formats: Sequence[str]) -> Iterator[Path]:
    """Every figure of the page of `folder` (compared to `other`) as out/NAME.FORMAT, where it is once it was written."""
    writers = {name: _writer(name) for name in formats}
    drawn = {figure.name: _svg(figure) for figure in _figures(folder, other) if figure.draw}
    if not drawn:
        raise DataError(f"{folder} has no figure that can be drawn; its page says why. For it type: farandole report {folder}")
    for name, svg in drawn.items():
        for kind, write in writers.items():
            path = out / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.{kind}"
            try:
                out.mkdir(parents=True, exist_ok=True)
                path.write_bytes(write(svg))
            except OSError as error:
                raise DataError(f"{path} cannot be written: {error.strerror}. Is there room, and may you write there?") from error
            yield path


def _figures(folder: Path, other: Path | None) -> Sequence[Figure]:
    from farandole.report.content import content_of
    from farandole.results.reading import read_folder

    study, compared = read_folder(folder), None if other is None else read_folder(other)
    return content_of(study, compared).figures


def _writer(kind: str) -> Callable[[str], bytes]:
    if kind not in FORMATS:
        raise SettingsError(f"there is no format {kind!r} of figures; there are {', '.join(FORMATS)}")
    if kind == "svg":
        return str.encode
    try:
        import typst
    except ImportError as error:
        raise SettingsError(f"--format {kind} needs typst ({error}). Type: pip install 'farandole[figures]'") from error
    made: Literal["pdf", "png"] = "pdf" if kind == "pdf" else "png"
    return lambda svg: typst.compile(_TYPST, format=made, ppi=_PNG_DPI, sys_inputs={"svg": svg})


def _svg(figure: Figure) -> str:
    """With its title and caption as what readers of the file are told, not drawn."""
    assert figure.draw is not None
    root = ElementTree.fromstring(figure.draw(_FULL_WIDTH if figure.full else _WIDTH))
    sheet = _Sheet.read()
    _strip(root)
    sheet.apply(root, sheet.variables)
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "font-family": _FONTS}
    paper = _paper(root, sheet.variables["--paper"])
    for name, text in (("desc", figure.caption), ("title", figure.title)):
        told = ElementTree.Element(name)
        told.text = text
        root.insert(0, told)
    root.insert(2, paper)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _strip(element: ElementTree.Element) -> None:
    """Of what is for the page's script."""
    for name in [name for name in element.attrib if name.startswith("data-")]:
        del element.attrib[name]
    for child in list(element):
        if child.tag == "title" or child.get("visibility") == "hidden":
            element.remove(child)
        else:
            _strip(child)


def _paper(root: ElementTree.Element, colour: str) -> ElementTree.Element:
    """What the figure is drawn on, with a margin around it."""
    x, y, width, height = map(float, root.attrib["viewBox"].split())
    size = {"width": f"{width + 2 * _MARGIN:g}", "height": f"{height + 2 * _MARGIN:g}"}
    place = {"x": f"{x - _MARGIN:g}", "y": f"{y - _MARGIN:g}"}
    root.attrib |= {**size, "viewBox": " ".join([*place.values(), *size.values()])}
    return ElementTree.Element("rect", {**place, **size, "fill": colour})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rule:
    """What elements with all of these classes look like."""

    element: str
    classes: frozenset[str]
    values: Mapping[str, str]

    def fits(self, element: ElementTree.Element, classes: set[str]) -> bool:
        return self.element in ("", element.tag) and self.classes <= classes


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sheet:
    """What page.css says of figures on white paper."""

    variables: Mapping[str, str]
    rules: Sequence[_Rule]
    """The more special one later."""

    @classmethod
    def read(cls) -> _Sheet:
        text = (files("farandole.report") / "page.css").read_text(encoding="utf-8")
        # Rules within another one, as for dark screens, are left out.
        text = re.sub(r"/\*.*?\*/|@[^{;]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", text, flags=re.DOTALL)
        found = [(head, _values(body)) for head, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text)]
        rules = [rule for heads, values in found for head in heads.split(",") if (rule := _rule(head.strip(), values))]
        variables = next(values for head, values in found if head.strip() == ":root")
        return cls(variables=variables, rules=sorted(rules, key=lambda rule: (len(rule.classes), rule.element)))

    def apply(self, element: ElementTree.Element, inherited: Mapping[str, str]) -> None:
        """Attributes instead of classes, of the element and all within it."""
        classes = set(element.attrib.pop("class", "").split())
        values = {name: value for rule in self.rules if rule.fits(element, classes) for name, value in rule.values.items()}
        variables = {**inherited, **{name: value for name, value in values.items() if name.startswith("--")}}
        element.attrib |= {name: _resolved(value, variables) for name, value in values.items() if name in _ATTRIBUTES}
        for child in element:
            self.apply(child, variables)


def _values(body: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (one.partition(":") for one in body.split(";")) if value}


def _rule(selector: str, values: Mapping[str, str]) -> _Rule | None:
    """None where it is of nothing that figures have, or of what is pointed at."""
    found = re.fullmatch(r"(?:svg (text)?)?((?:\.[\w-]+)*)", selector)
    return _Rule(element=found[1] or "", classes=frozenset(found[2].split(".")[1:]), values=values) if found else None


def _resolved(value: str, variables: Mapping[str, str]) -> str:
    """Without var(...)."""
    found = re.fullmatch(r"var\((--[\w-]+)(?:, *(.*))?\)", value)
    return _resolved(variables.get(found[1], found[2] or ""), variables) if found else value
