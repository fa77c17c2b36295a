"""What every file of the repository keeps to."""

import ast
import re
from pathlib import Path

import pytest

from repository import ROOT, modules, written_files

MOST_LINES = 600
ONE_MACHINE_OR_ONE_DAY = re.compile(
    r"""
      (?<![\w./~:-])/(?:work|root|home|Users)/\w   # a path of somebody's machine
    | \.\./shared\b                                # a directory beside the clone
    | \bissues?[ ]\#?\d                            # a tracker the reader may not have
    | \bissues[ ]show\b
    | \b(?:this|last|next|previous|earlier)[ ]session\b
    """,
    re.VERBOSE,
)


def test_every_module_says_what_it_is() -> None:
    silent = [str(module.path) for module in modules() if not ast.get_docstring(module.tree)]
    assert not silent, f"no docstring in {silent}"


def test_every_module_fits_on_a_few_screens() -> None:
    lines = {str(module.path): len(module.path.read_text().splitlines()) for module in modules()}
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}


def tied_to_one_place(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if ONE_MACHINE_OR_ONE_DAY.search(line)
    ]


def test_no_file_speaks_of_one_machine_or_one_day() -> None:
    found = [line for path in written_files() for line in tied_to_one_place(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "words", [("see /", "home/me/x"), ("..", "/shared/x"), ("fixes issue", " 12"), ("this", " session")]
)
def test_such_words_are_seen(tmp_path: Path, words: tuple[str, str]) -> None:
    path = tmp_path / "notes.md"
    path.write_text("".join(words))
    assert tied_to_one_place(path)


@pytest.mark.parametrize("folder", ["bench", "examples", "studies"])
def test_scripts_import_modules_that_exist(folder: str) -> None:
    """Nothing else imports most of them: a module that has moved would be missed where somebody runs them."""
    known = {module.name for module in modules()}
    scripts = sorted((ROOT / folder).glob("*.py"))
    assert scripts
    for script in scripts:
        for node in ast.walk(ast.parse(script.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            missing = [name for name in names if name.split(".")[0] == "farandole" and name not in known]
            assert not missing, f"{script}:{node.lineno}: {missing}"
