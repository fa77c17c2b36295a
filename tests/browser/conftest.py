"""One browser for all tests of this directory, and pages for it to show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chromium import NAMES, Browser, Tab, find_chromium
from farandole.report import write_report
from studyfolder import Shape, changed, make_loaders, make_run, make_study, record_timeline


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip(f"No browser (no {', '.join(NAMES)}). On Debian type: sudo make browser")
    with Browser(program) as found:
        yield found


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Iterator[Tab]:
    found = browser.tab()
    yield found
    found.close()


def doubtful(folder: Path) -> Path:
    """Every other run has diverged, and other programs ran beside all of them."""

    def change(line: dict[str, Any]) -> None:
        line["figures"]["others_share"] = 0.9
        if line["repeat"]:
            line["figures"].update(dict.fromkeys(("loss", "accuracy", "test_loss", "test_accuracy")))

    return changed(folder, change)


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    traced = make_run(root / "traced", trace=False)
    record_timeline(traced / "timeline.json", ranks=4)
    before = make_study(root / "pandas", Shape(loaders=("pandas",), repeats=2, cores=64, idle_w=60.0))
    after = make_study(root / "fast", Shape(repeats=2, cores=64, idle_w=60.0))
    many = Shape(ranks=(4, 8, 16, 32, 64), loaders=("pandas", "fast"), batch_sizes=(10, 20, 80), repeats=2, trace=False)
    return {
        "study": write_report(make_study(root / "study", Shape(failures=((4, 1), (16, 0)), idle_w=60.0))),
        "before": write_report(make_study(root / "schema-1", Shape(idle_w=60.0, schema=1))),
        "comparison": write_report(before, after),
        "run": write_report(make_run(root / "run")),
        "traced": write_report(traced),
        "many": write_report(make_study(root / "many", many)),
        "names": write_report(make_study(root / "names", Shape(ranks=(4,), loaders=("pandas", "fast", "chunked"), trace=False))),
        "loaders": write_report(make_loaders(root / "loaders", benchmarks=("nt3", "p1b2"), repeats=2, failing=("polars",))),
        "doubtful": write_report(doubtful(make_study(root / "doubtful", Shape(repeats=2, trace=False)))),
        "little": write_report(make_study(root / "little", Shape(power="none", accuracy=False, trace=False, repeats=1))),
    }
