"""Commands in the documents work as written, and links lead somewhere."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.study.settings import KINDS
from repository import ROOT, documents

FENCE = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PUNCTUATION = {"&&", "||", ";", "|", "&"}
OF_THE_READER = {"train.py", "my_script.py"}
"""Scripts that a document speaks of and the reader brings."""

ACTIONS = ("study", "timeline", "trace", "data", "checkpoint", "bench")
"""Verbs that are followed by what they do, which has options of its own."""
INLINE = re.compile(r"`(farandole [a-z][^`]*)`")

DOCUMENTS = {str(path.relative_to(ROOT)): path for path in documents()}


def commands(text: str) -> Iterator[list[str]]:
    """Each command of the shell blocks as words."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from split(line.removeprefix("$ "))


def split(line: str) -> Iterator[list[str]]:
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for word in [*lexer, ";"]:
        if word in PUNCTUATION:
            if words:
                yield words
            words = []
        elif words or not re.fullmatch(r"\w+=.*", word):  # variables set before a command are not part of it
            words.append(word)


def farandole_arguments(command: list[str]) -> list[str] | None:
    """What follows `farandole` or `python -m farandole`, up to the user's own command; None for other commands."""
    if command[:1] and Path(command[0]).name == "farandole":
        arguments = command[1:]
    elif command[1:3] == ["-m", "farandole"]:
        arguments = command[3:]
    else:
        return None
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


@cache
def help_of(*words: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "farandole", *words, "--help"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, f"farandole {' '.join(words)} --help: exit code {run.returncode}\n{run.stderr}"
    return run.stdout


def usage_of(arguments: list[str]) -> str:
    """The help of the verb that is typed, and of the action within it where it has several."""
    verb, *rest = arguments
    if verb == "study" and rest and rest[0].endswith(".toml"):
        return help_of(verb, "file")
    named = bool(rest) and not rest[0].startswith("-")
    if named and (verb in ACTIONS or (verb == "run" and (not rest[0].endswith(".py") or (ROOT / rest[0]).exists()))):
        return help_of(verb, rest[0])  # a workload has parameters of its own
    return help_of(verb)


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def wrong_with(command: list[str]) -> str | None:
    arguments = farandole_arguments(command)
    if command[0] == "make":
        unknown = [word for word in command[1:] if re.fullmatch("[a-z][a-z-]*", word) and word not in make_targets()]
        return f"no make target {unknown}" if unknown else None
    if arguments and not arguments[0].startswith("-"):
        options = {word.split("=")[0] for word in arguments[1:] if word.startswith("--")}
        known = set(re.findall(r"--[a-z][\w-]*", usage_of(arguments))) if options else set()
        unknown = [option for option in options if option not in known]
        return f"farandole {' '.join(arguments[:2])} has no {unknown}" if unknown else None
    missing = [
        word
        for word in command
        if word.endswith(".py") and not (ROOT / word).exists() and word not in OF_THE_READER
    ]
    return f"no file {missing}" if missing else None


def test_the_readme_shows_commands() -> None:
    shown = [command[0] for command in commands((ROOT / "README.md").read_text())]
    assert "make" in shown
    assert any(farandole_arguments(command) for command in commands((ROOT / "README.md").read_text()))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_exist(document: str) -> None:
    for command in commands(DOCUMENTS[document].read_text()):
        wrong = wrong_with(command)
        assert wrong is None, f"{document}: `{shlex.join(command)}`: {wrong}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_sentences_have_such_options(document: str) -> None:
    for text in INLINE.findall(DOCUMENTS[document].read_text()):
        for command in split(text.replace("...", "").replace("|", " ")):
            wrong = wrong_with(command) if "--" in text else None
            assert wrong is None, f"{document}: `{text}`: {wrong}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = DOCUMENTS[document]
    targets = [link for link in LINK.findall(path.read_text()) if not re.match(r"[a-z]+:|#", link)]
    missing = [link for link in targets if not (path.parent / link.split("#")[0]).exists()]
    assert not missing, f"{document} links to {missing}"


def test_the_bench_s_readme_has_every_benchmark() -> None:
    names = re.findall(r'name="([a-z0-9-]+)"', (ROOT / "bench" / "catalogue.py").read_text())
    shown = (ROOT / "bench" / "README.md").read_text()
    assert names and [name for name in names if f"| `{name}` |" not in shown] == []


def planned(command: list[str]) -> list[str] | None:
    """The words of a study that can be planned; None for other commands, and for files the reader brings."""
    match farandole_arguments(command):
        case ["study", what, *_] as words if what in KINDS or (what.endswith(".toml") and (ROOT / what).exists()):
            return words
    return None


def studies() -> Iterator[tuple[str, list[str]]]:
    """Where it is shown, and what is typed."""
    shown = [line.strip() for line in help_of("study").splitlines() if line.startswith("  farandole study ")]
    for line in shown:
        for command in split(re.split(" {2,}", line)[0]):  # what it does follows after some spaces
            yield "farandole study --help", command
    for document, path in DOCUMENTS.items():
        for command in commands(path.read_text()):
            yield document, command


def test_studies_that_are_shown_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    where: list[str] = []
    for number, (document, command) in enumerate(studies()):
        words = planned(command)
        if words is None:
            continue
        where.append(document)
        code = main([*words, "--dry-run", "--out", str(tmp_path / str(number))])
        assert code == 0, f"{document}: `{shlex.join(command)}`: {capsys.readouterr().err}"
    assert where.count("farandole study --help") >= 5 and where.count("docs/studies.md") >= 5
    assert not list(tmp_path.iterdir()), "nothing is run"


def test_a_wrong_command_is_seen() -> None:
    text = "```sh\n$ make nothing\nX=1 make absent; make test && python examples/absent.py # why\nfarandole study table DIR --ranks 2\n```\n"
    assert [wrong_with(command) is None for command in commands(text)] == [False, False, True, False, False]
