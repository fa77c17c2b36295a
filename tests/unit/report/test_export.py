"""Figures as files for a paper: whole without the page, in each format, and an error that says what to do."""

import shutil
import struct
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from farandole.cli import main
from farandole.report import write_report
from studyfolder import Shape, make_loaders, make_run, make_study, record_timeline

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_study(tmp_path_factory.mktemp("study"), Shape(ranks=(1, 2, 4), repeats=2))
    record_timeline(next(folder.rglob("timeline.json")), ranks=4)
    return folder


def exported(capsys: pytest.CaptureFixture[str], *words: object) -> list[Path]:
    """The files that the command says it has written."""
    assert main(["report", *map(str, words)]) == 0
    return [Path(line) for line in capsys.readouterr().out.splitlines()]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["report", *map(str, words)]) != 0
    return capsys.readouterr().err


def text_of(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_every_figure_of_the_page_is_a_file_named_after_it(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = exported(capsys, study, "--export-figures", tmp_path / "out")
    assert sorted(found) == sorted((tmp_path / "out").iterdir())
    assert [path.name for path in found] == ["time.svg", "efficiency.svg", "energy.svg", "accuracy.svg", "heat.svg", "timeline.svg"]
    parts = write_report(study).read_text().split('<figure id="figure-')[1:]
    assert [path.stem for path in found] == [part.split('"')[0] for part in parts if "<svg" in part]


def test_a_drawing_needs_no_page(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in exported(capsys, study, "--export-figures", tmp_path):
        text = path.read_text()
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg" and root[0].text, "titled, for those who do not see it"
        assert not any(word in text for word in ("var(", "class=", "data-", "<style", "NaN")), path
        inks = {element.get("fill") for element in root.iter(f"{SVG}text")}
        assert inks and all(ink and ink.startswith("#") for ink in inks), inks
    efficiency = ElementTree.fromstring((tmp_path / "efficiency.svg").read_text())
    assert efficiency.get("width") == "420" and "loading data" in text_of(efficiency), "with its legend"
    heat = ElementTree.fromstring((tmp_path / "heat.svg").read_text())
    assert heat.get("width") == "840" and "#0a2d5c" in {path.get("stroke") for path in heat.iter(f"{SVG}path")}


def test_two_studies_and_single_runs_have_files_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = make_study(tmp_path / "pandas", Shape(ranks=(1, 2), loaders=("pandas",), repeats=1, trace=False))
    after = make_study(tmp_path / "fast", Shape(ranks=(1, 2), repeats=1, trace=False))
    names = {path.name for path in exported(capsys, before, after, "--export-figures", tmp_path / "both")}
    assert {"compare.svg", "compare-time.svg", "time.svg", "time-after.svg"} <= names
    run = make_run(tmp_path / "run", trace=False)
    assert "phases.svg" in {path.name for path in exported(capsys, run, "--export-figures", tmp_path / "one")}
    loaders = make_loaders(tmp_path / "loaders", benchmarks=("nt3",), repeats=1)
    assert "time.svg" in {path.name for path in exported(capsys, loaders, "--export-figures", tmp_path / "loading")}


def test_formats_for_papers(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typst", reason="pip install 'farandole[figures]'")
    found = exported(capsys, study, "--export-figures", tmp_path, "--format", "pdf,png", "--format", "svg")
    assert len(found) == 18 and {path.suffix for path in found} == {".pdf", ".png", ".svg"}
    for path in found:
        content = path.read_bytes()
        if path.suffix == ".pdf":
            assert content.startswith(b"%PDF-") and b"/FontDescriptor" in content, "text is text"
        elif path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            drawing = ElementTree.fromstring(path.with_suffix(".svg").read_text())
            dots = [round(float(drawing.get(side, 0)) * 300 / 96) for side in ("width", "height")]
            assert struct.unpack(">II", content[16:24]) == pytest.approx(dots, abs=1)
    if program := shutil.which("pdftotext"):
        told = subprocess.run([program, tmp_path / "time.pdf", "-"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert "seconds, log scale" in told and "ideal" in told


def test_without_typst_it_says_what_to_install(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    assert "pip install 'farandole[figures]'" in refused(capsys, study, "--export-figures", tmp_path / "out", "--format", "svg,pdf")
    assert not (tmp_path / "out").exists(), "nothing is half done"
    assert exported(capsys, study, "--export-figures", tmp_path / "out"), "SVG needs nothing"


def test_what_cannot_be_written_is_named(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    told = refused(capsys, study, "--export-figures", tmp_path / "file")
    assert f"{tmp_path / 'file'}" in told and "cannot be written" in told and "Traceback" not in told
    assert (tmp_path / "file").read_text() == "mine"


def test_options_that_do_not_fit_are_refused(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Add --export-figures OUT" in refused(capsys, study, "--format", "pdf")
    told = refused(capsys, study, "--export-figures", tmp_path / "out", "--format", "svg,jpg")
    assert "no format 'jpg' of figures; there are svg, pdf, png" in told and not (tmp_path / "out").exists()


def test_a_study_without_figures_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_study(tmp_path / "failed", Shape(ranks=(1,), repeats=1, failures=((1, 0),), trace=False))
    assert f"type: farandole report {folder}" in refused(capsys, folder, "--export-figures", tmp_path / "out")
    assert not (tmp_path / "out").exists()
