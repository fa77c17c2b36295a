"""The report in a real browser: as readers see it, on any screen, with and without its script."""

from pathlib import Path

import pytest

from chromium import Tab
from farandole.report.export import export_figures

WIDE, NARROW, A4 = 1440, 390, 688

# What is wrong with a page as it is laid out now: overflow, labels on each other or cut off, empty figures.
LOOK_CLOSELY = """
(() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) wrong.push(`the page is ${root.scrollWidth} px wide on ${root.clientWidth}`);
  for (const figure of document.querySelectorAll("figure")) {
    const drawn = [...figure.querySelectorAll("svg")].filter((svg) => svg.getBoundingClientRect().width > 0);
    const told = figure.querySelector(".missing");
    if (drawn.length + (told ? 1 : 0) !== 1) wrong.push(`${figure.id}: ${drawn.length} pictures`);
    for (const svg of drawn) {
      const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
      for (const [text, box] of boxes) {
        if (box.right > root.clientWidth + 1 || box.left < -1) wrong.push(`${figure.id}: "${text}" is cut off`);
        if (box.height < 7) wrong.push(`${figure.id}: "${text}" is ${box.height.toFixed(1)} px high`);
      }
      for (let one = 0; one < boxes.length; one++)
        for (let other = one + 1; other < boxes.length; other++) {
          const [first, a] = boxes[one], [second, b] = boxes[other];
          const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
          const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          // Boxes include the room above and below letters.
          if (across > 1 && down > 4) wrong.push(`${figure.id}: "${first}" lies on "${second}"`);
        }
    }
  }
  return wrong;
})()
"""
# Texts that a line runs through with nothing around the letters to part them; those in bars lie on colour.
STRUCK = """
(() => {
  const struck = [];
  for (const svg of [...document.querySelectorAll("figure svg")].filter((one) => one.getBoundingClientRect().width > 0)) {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    const places = [];
    for (const line of svg.querySelectorAll("line.grid, line.base, path.line"))
      for (let at = 0; at <= line.getTotalLength(); at += 3) {
        const { x, y } = line.getPointAtLength(at);
        places.push([box.left + x * scale, box.top + (y - svg.viewBox.baseVal.y) * scale]);
      }
    for (const text of svg.querySelectorAll("text:not(.in-bar)")) {
      const { left, right, top, bottom } = text.getBoundingClientRect(), style = getComputedStyle(text);
      const through = places.some(([x, y]) => left + 1 < x && x < right - 1 && top + 3 < y && y < bottom - 3);
      if (through && !(style.paintOrder.startsWith("stroke") && style.stroke === getComputedStyle(document.documentElement).backgroundColor))
        struck.push(text.textContent);
    }
  }
  return struck;
})()
"""
# What each word of a figure looks like, and those that leave the picture.
LOOKS = """
[...new Set([...document.querySelectorAll("WITHIN text")].map((text) => {
  const style = getComputedStyle(text);
  return [text.textContent, style.fill, style.fontSize, style.fontWeight, style.textAnchor, style.paintOrder].join(" ");
}))].sort()
"""
OUTSIDE = """
[...document.querySelectorAll("text")].filter((text) => {
  const box = text.getBBox(), picture = document.documentElement.viewBox.baseVal;
  return box.x < picture.x || box.x + box.width > picture.x + picture.width || box.y < picture.y || box.y + box.height > picture.y + picture.height;
}).map((text) => text.textContent)
"""
COLOURS = "getComputedStyle(document.documentElement).backgroundColor + getComputedStyle(document.querySelector('h1')).color"
COLUMN = "[...document.querySelectorAll('#results tbody tr')].map((row) => row.cells[{at}].dataset.v)"


def middle_of(tab: Tab, selector: str) -> tuple[float, float]:
    """Of the first visible match, which is brought into view; the page hears of the scrolling one frame later."""
    x, y = tab.run(
        f"""(async () => {{
          const seen = [...document.querySelectorAll({selector!r})].find((one) => one.getBoundingClientRect().width > 0);
          seen.scrollIntoView({{block: "center"}});
          for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
          const box = seen.getBoundingClientRect();
          return [box.left + box.width / 2, box.top + box.height / 2];
        }})()"""
    )
    return x, y


def tip(tab: Tab) -> str:
    return str(tab.run("new Promise((done) => requestAnimationFrame(() => done(tip.hidden ? '' : tip.textContent)))"))


@pytest.mark.parametrize("width", [WIDE, NARROW, 768])
@pytest.mark.parametrize("page", ["study", "before", "comparison", "many", "names", "loaders", "run", "traced", "little", "doubtful"])
def test_pages_fit_and_labels_keep_apart(tab: Tab, pages: dict[str, Path], page: str, width: int) -> None:
    tab.look(pages[page], width=width)
    assert tab.run(LOOK_CLOSELY) == []
    assert tab.complaints == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("page", ["comparison", "many", "loaders", "traced"])
def test_no_line_strikes_through_a_label(tab: Tab, pages: dict[str, Path], page: str, dark: bool) -> None:
    for width in (WIDE, NARROW):
        tab.look(pages[page], width=width, dark=dark)
        assert tab.run(STRUCK) == []


@pytest.mark.parametrize(("page", "figure"), [("many", "efficiency"), ("traced", "history-loss"), ("loaders", "time")])
def test_a_figure_s_file_shows_what_the_page_does(tab: Tab, pages: dict[str, Path], page: str, figure: str, tmp_path: Path) -> None:
    for path in export_figures(pages[page].parent, None, tmp_path, ["svg"]):
        tab.look(path, width=WIDE)
        assert tab.run(OUTSIDE) == [], path
    tab.look(tmp_path / f"{figure}.svg", width=WIDE)
    alone = tab.run(LOOKS.replace("WITHIN", "svg"))
    tab.look(pages[page], width=WIDE)
    on_page = tab.run(LOOKS.replace("WITHIN", f"#figure-{figure} .wide"))
    assert len(alone) > 5 and [one for one in alone if one not in on_page] == []
    assert tab.complaints == []


@pytest.mark.parametrize("page", ["study", "comparison", "many", "loaders", "doubtful"])
def test_print_fits_on_a4_in_light_colours(tab: Tab, pages: dict[str, Path], page: str) -> None:
    tab.look(pages[page], width=A4, media="print", dark=True)
    assert tab.run(LOOK_CLOSELY) == []
    assert tab.run(COLOURS) == "rgb(255, 255, 255)rgb(26, 29, 33)"
    assert tab.run("getComputedStyle(document.querySelector('.copy')).display") == "none"
    assert "each configuration" in tab.run("document.querySelector('.trust').innerText.toLowerCase()"), "nobody can point at paper"


@pytest.mark.parametrize("page", ["study", "comparison", "many"])
@pytest.mark.parametrize("width", [WIDE, 850, 768, 620, NARROW])
def test_text_in_figures_is_never_scaled_much(tab: Tab, pages: dict[str, Path], page: str, width: int) -> None:
    tab.look(pages[page], width=width)
    scales = tab.run(
        "[...document.querySelectorAll('svg')].filter((one) => one.getBoundingClientRect().width > 0)"
        ".map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width)"
    )
    assert min(scales) > 0.75 and max(scales) < 1.2


def test_in_print_the_first_verdict_is_the_largest_text(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["comparison"], width=A4, media="print")
    sizes = {
        selector: float(str(tab.run(f"getComputedStyle(document.querySelector('{selector}')).fontSize")).removesuffix("px"))
        for selector in (".verdict", ".caveats", "h2.part", "figcaption h2", ".side")
    }
    assert sizes[".verdict"] > sizes[".caveats"] and sizes[".verdict"] > sizes["h2.part"] > sizes["figcaption h2"] > sizes[".side"]


def test_dark_is_dark(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["study"], width=WIDE)
    light = tab.run(COLOURS)
    tab.look(pages["study"], width=WIDE, dark=True)
    assert tab.run(COLOURS) == "rgb(20, 23, 26)rgb(231, 233, 236)"
    assert light == "rgb(255, 255, 255)rgb(26, 29, 33)"
    assert tab.complaints == []


def test_pointing_at_a_figure_tells_its_numbers(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["study"], width=WIDE)
    tab.point_at(*middle_of(tab, "#figure-time .ink .dot"))
    assert "ranks 1\ntotal 20" in tip(tab)
    tab.point_at(*middle_of(tab, "#figure-efficiency .c-load.fill"))
    assert "loading data: " in tip(tab)
    tab.point_at(*middle_of(tab, "#figure-heat svg"))
    assert tip(tab).startswith("rank ")
    tab.point_at(*middle_of(tab, "#figure-timeline .p-train.fill"))
    assert "training" in tip(tab)
    assert "at " in tip(tab)
    assert tab.run("[...document.querySelectorAll('.cursor')].filter((one) => one.getAttribute('visibility') === 'visible').length") == 1
    tab.point_at(*middle_of(tab, "h1"))
    assert tip(tab) == ""
    assert tab.complaints == []


def test_pointing_at_the_second_study_s_figures_tells_theirs(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["comparison"], width=WIDE)
    tab.point_at(*middle_of(tab, "#figure-heat-after svg"))
    assert tip(tab).startswith("rank ")
    ends = [tab.run(f"document.querySelector('#{name} .wide svg').dataset.time") for name in ("figure-timeline", "figure-timeline-after")]
    assert ends[0] == ends[1], "on one scale"
    tab.point_at(*middle_of(tab, "#figure-timeline-after .p-train.fill"))
    assert "training" in tip(tab) and "at " in tip(tab)
    assert tab.complaints == []


def test_a_click_on_a_heading_sorts(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["study"], width=WIDE)
    heading = "[...document.querySelectorAll('#results th')].find((th) => th.dataset.name === 'total [s]')"
    at = tab.run(f"{heading}.cellIndex")
    times = [float(text) for text in tab.run(COLUMN.format(at=at))]
    assert times == sorted(times, reverse=True)
    tab.run(f"{heading}.querySelector('button').click()")
    assert [float(text) for text in tab.run(COLUMN.format(at=at))] == sorted(times)
    tab.run(f"{heading}.querySelector('button').click()")
    assert [float(text) for text in tab.run(COLUMN.format(at=at))] == times
    assert tab.run(f"{heading}.getAttribute('aria-sort')") == "descending"


def test_tables_are_copied_as_csv_and_latex(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["study"], width=WIDE)
    tab.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    tab.run("document.querySelector('[data-copy=csv][data-table=results]').click()")
    head, *rows = str(tab.run("window.copied")).strip().split("\n")
    assert head.startswith("ranks,learning rate,threads,nodes,local batch,global batch,total [s]")
    assert [row.split(",")[0] for row in rows] == ["1", "2", "4", "8", "16"]
    assert '"above idle, modelled [J]"' in head
    tab.run("document.querySelector('[data-copy=latex][data-table=results]').click()")
    latex = str(tab.run("window.copied"))
    assert latex.startswith("\\begin{table}\n\\centering\n\\caption{All configurations. Base case: 1 rank, ")
    assert " & above idle, modelled [J] & " in latex
    assert "\n\\begin{tabular}{rrrr" in latex and latex.count("\\\\\n") == 6
    tab.run(r"document.querySelector('#results th').dataset.name = 'a\\b^c~d'")
    tab.run("document.querySelector('[data-copy=latex][data-table=results]').click()")
    assert r"a\textbackslash{}b\textasciicircum{}c\textasciitilde{}d & learning rate" in str(tab.run("window.copied"))
    tab.run("document.querySelector('.command .copy').click()")
    assert tab.run("window.copied") == "farandole study strong nt3 --ranks 1,2,4,8,16 --repeats 3"


def test_copies_say_of_how_many_runs_figures_are_and_what_ran_beside_them(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["doubtful"], width=WIDE)
    assert "1 of 2" in tab.run("document.querySelector('#results tbody tr').innerText")
    tab.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    told = "2 (busy machine, loss 1 of 2, accuracy 1 of 2, test loss 1 of 2, test accuracy 1 of 2)"
    tab.run("document.querySelector('[data-copy=csv][data-table=results]').click()")
    assert str(tab.run("window.copied")).strip().endswith(f',"{told}"')
    tab.run("document.querySelector('[data-copy=latex][data-table=results]').click()")
    latex = str(tab.run("window.copied"))
    assert f"& {told} " in latex and "(N of M): M runs ended well, and N of them have the value." in latex


def test_a_recorded_trace_is_seen(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["traced"], width=WIDE)
    entries = tab.run("[...document.querySelectorAll('#figure-timeline .wide .entry')].map((entry) => entry.textContent)")
    assert entries[-3:] == ["power of n1", "CPU of n1", "memory of n1"]
    tab.point_at(*middle_of(tab, "#figure-heat svg"))
    assert "steps" in tip(tab) or "step " in tip(tab)
    tab.point_at(*middle_of(tab, "#figure-timeline .p-train.fill"))
    assert "training" in tip(tab)
    assert tab.complaints == []


def test_everything_can_be_read_without_script(tab: Tab, pages: dict[str, Path]) -> None:
    tab.look(pages["study"], width=WIDE, script=False)
    assert tab.run(LOOK_CLOSELY) == []
    assert tab.run("document.documentElement.className + getComputedStyle(document.querySelector('.buttons')).display") == "none"
    assert tab.run("document.querySelectorAll('svg title').length") > 50
    assert "ranks" in tab.run("document.querySelector('.verdict').innerText")
    assert "Power modelled, not measured." in tab.run("document.querySelector('.caveats').innerText")
