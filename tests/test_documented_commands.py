"""Every command in the documents fits rollq as it is: its flags, targets and files exist."""

import re
import subprocess
from pathlib import Path

import pytest

from rollq.cli import main, parser
from rollq.commands.flags.parser import Parser
from tests.documented_commands import REPO, Command, commands, write_files

ALL = list(commands())
LINES = [command for command in ALL if not command.is_synopsis]
SYNOPSES = [command for command in ALL if command.is_synopsis and command.words[0] == "rollq"]
OF_ROLLQ = [command for command in LINES if command.words[0].endswith("rollq")]


def name(command: Command) -> str:
    return f"{command.page}: {command.line}"[:110]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages have their reader write."""
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["env", "new", "words"]) == 0
    for copy in ("words.py", "hard.py"):
        (folder / copy).write_text((folder / "words/words.py").read_text())
    return folder


@pytest.mark.parametrize("command", OF_ROLLQ, ids=name)
def test_the_line_is_one_that_rollq_takes(
    command: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    words = [word.replace("NAME", "name") for word in command.words[1:]]
    if ">" in words:  # a shell's
        words = words[: words.index(">")]
    assert parser(words).parse_args(words).run


@pytest.mark.parametrize("command", SYNOPSES, ids=name)
def test_the_flags_of_a_synopsis_exist(command: Command) -> None:
    words = command.line.split()[1:]
    known = options(parser(words), words)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", command.line)) <= known


def options(command: Parser, words: list[str]) -> set[str]:
    """The flags of the command that the words name, down to `env check`."""
    if command.commands and words and words[0] in command.commands.parsers:
        return options(command.commands.parsers[words[0]], words[1:])
    return set(command.flags)


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))
    assert {command.words[1] for command in LINES if command.words[0] == "make"} <= targets


def test_make_test_agents_installs_the_versions_that_the_page_names(tmp_path: Path) -> None:
    [pinned] = re.findall("npm install -g (.*)", (REPO / "docs/agents.md").read_text())
    make = ["make", "-n", f"VENV={tmp_path}", "test-agents"]
    installed = subprocess.run(make, cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/agents {pinned}\n" in installed
    assert f"{tmp_path}/agents/latest @anthropic-ai/claude-code@latest" in installed


def test_named_files_exist() -> None:
    paths = [
        word
        for command in LINES
        for word in command.words
        if re.match(r"(tests|examples|docs|benchmarks|deploy)/[\w/.-]+$", word)
    ]
    assert len(paths) > 10
    assert [path for path in paths if not (REPO / path).exists()] == []
