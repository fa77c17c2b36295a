"""One browser for all tests of this directory, and pages for it to show."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import NAMES, Browser, Tab, find_chromium
from farandole.report import traces, write_report
from studyfolder import Shape, make_loaders, make_run, make_study, record_timeline, stand_in_analyse


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
    results = folder / "results.jsonl"
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    for line in lines:
        line["figures"]["others_share"] = 0.9
        if line["repeat"]:
            line["figures"].update(dict.fromkeys(("loss", "accuracy", "test_loss", "test_accuracy")))
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    traced = make_run(root / "traced", trace=False)
    record_timeline(traced / "timeline.json", ranks=4)
    real = write_report(traced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "analyse", stand_in_analyse)
        before = make_study(root / "pandas", Shape(loaders=("pandas",), repeats=2, cores=64, idle_w=60.0))
        after = make_study(root / "fast", Shape(repeats=2, cores=64, idle_w=60.0))
        return {
            "study": write_report(make_study(root / "study", Shape(failures=((4, 1), (16, 0)), idle_w=60.0))),
            "comparison": write_report(before, after),
            "run": write_report(make_run(root / "run")),
            "traced": real,
            "many": write_report(
                make_study(
                    root / "many",
                    Shape(ranks=(4, 8, 16, 32, 64), loaders=("pandas", "fast"), batch_sizes=(10, 20, 80), repeats=2, trace=False),
                )
            ),
            "names": write_report(
                make_study(root / "names", Shape(ranks=(4,), loaders=("pandas", "fast", "chunked"), trace=False))
            ),
            "loaders": write_report(make_loaders(root / "loaders", benchmarks=("nt3", "p1b2"), repeats=2, failing=("polars",))),
            "doubtful": write_report(doubtful(make_study(root / "doubtful", Shape(repeats=2, trace=False)))),
            "little": write_report(make_study(root / "little", Shape(power="none", accuracy=False, trace=False, repeats=1))),
        }
