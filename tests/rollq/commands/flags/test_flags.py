"""A wrong value of a flag is one clear line, which names the flag."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollq import cli
from rollq.commands import evaluate, jobs, pull, weights
from rollq.commands.flags import types
from rollq.commands.flags.files import environment
from rollq.commands.flags.parser import Parser
from rollq_worker.commands.engine import environments
from tests.rollq.commands.conftest import Fails

PLAIN = (None, Path, environment, environments)
"""Types of addresses, names and paths, which are checked when they are used."""
LINES: dict[str, tuple[str, ...]] = {
    "submit": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "eval": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "pull": ("--run", "r", "--groups", "1"),
    "jobs list": ("r",),
}


def all_flags(parser: Parser | None = None) -> Iterator[tuple[str, str, argparse.Action]]:
    """The flags of all commands that take a value: the command's name, the flag's name, and
    argparse's action.
    """
    parser = parser or cli.parser()
    for command in parser.commands.parsers.values() if parser.commands else ():
        yield from all_flags(command)
    for action in {id(action): action for action in parser.flags.values()}.values():
        if action.nargs != 0 and not parser.commands:
            yield parser.prog.removeprefix("rollq "), action.option_strings[-1], action


CHECKED = [
    (command, flag, action.type)
    for command, flag, action in all_flags()
    if action.type not in PLAIN or action.choices
]


def test_the_flags_are_there() -> None:
    assert len(CHECKED) > 40


@pytest.mark.parametrize(("command", "flag", "kind"), CHECKED)
def test_a_wrong_value_names_its_flag(fails: Fails, command: str, flag: str, kind: Any) -> None:
    said = fails(*command.split(), f"{flag}=")
    assert f"{flag}: " in said and f"rollq {command} --help" in said


@given(st.sampled_from([kind for _, _, kind in CHECKED if kind]), st.text(max_size=12))
@example(types.tasks, "0-9007199254740992")
@example(types.integer(0), "9" * 5000)
@example(types.number(0), "nan")
@example(pull.filter_name, "json:__doc__")
def test_a_type_takes_a_text_or_says_what_it_expects(
    kind: Callable[[str], object], text: str
) -> None:
    try:
        kind(text)
    except argparse.ArgumentTypeError as e:
        assert str(e) and "\n" not in str(e)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (types.integer(1, 9), "0 10 1.5 0x1 1e0 many"),
        (types.number(0), "-1 nan inf much 1,5"),
        (types.name, "{x} a/b a:b .a é"),
        (types.tasks, "5-2 -1 a-b 1- 0-1-2 1.5"),
        (types.http_url, "localhost:30000 http:// ftp://host http://host:99999"),
        (types.engine_source, "localhost:30000 file: redis: redis://h:1/0"),
        (types.expert_shape, "48 48x8 8x8x4 0x1x1 48x8x128x1 {"),
        (types.assignment, "thinking =true"),
        (types.listen_address, "x host: h:65536"),
        (jobs.target, "r/g r/g/x r//0"),
        (pull.extra_names, ", a,"),
        (pull.filter_name, "unequal json: :dumps no_such_module:f json:none"),
        (pull.tracker, ":shop wandb:p:x wandb:p:1:2"),
        (weights.weight_version, "v" * 257),
        (evaluate.place, "@200 a/b@200"),
    ],
)
def test_wrong_values(kind: Callable[[str], object], wrong: str) -> None:
    for text in wrong.split():
        with pytest.raises(argparse.ArgumentTypeError):
            kind(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3", range(4)), ("7", range(7, 8)), ("2-2", range(2, 3)), (" 1 - 2 ", range(1, 3))],
)
def test_tasks_include_both_ends(text: str, expected: range) -> None:
    assert types.tasks(text) == expected


@pytest.mark.parametrize("command", ["submit", "eval", "pull", "stats", "jobs list"])
@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "http://h",
        "redis://",
        "redis://h:port/0",
        "redis://h/x",
        "unix://",
        "redis://h:0",
        "redis://h/0?virtual_host=x",
    ],
)
def test_a_wrong_address(fails: Fails, command: str, address: str) -> None:
    assert "not an address of Redis" in fails(
        *command.split(), *LINES.get(command, ()), f"--redis={address}"
    )


@pytest.mark.parametrize("command", ["pull", "eval"])
def test_an_output_file_that_cannot_be_written(fails: Fails, command: str, tmp_path: Path) -> None:
    line = (command, *LINES[command], "--redis", "redis://127.0.0.1:1/0", "--out")
    assert "No such file or directory" in fails(*line, str(tmp_path / "none" / "x.jsonl"))
    assert "Is a directory" in fails(*line, str(tmp_path))
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    assert "notes.txt:1 is not a line of JSON" in fails(*line, str(other), code=1)
    assert other.read_text() == "my notes\n"


def test_an_input_file_that_is_missing(fails: Fails) -> None:
    assert "there is no file no-such.jsonl" in fails("show", "no-such.jsonl")
    assert "no-such.jsonl" in fails("audit", "no-such.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLQ_REDIS_URL", "localhost"),
        ("ROLLQ_BROKER_URL", "localhost"),
        ("ROLLQ_ENGINE_URL", "localhost:30000"),
        ("ROLLQ_CONCURRENCY", "many"),
        ("ROLLQ_USER_ENDPOINTS", "local=http://h,api_key=sk-secret"),
    ],
)
def test_a_wrong_setting_is_named(
    fails: Fails, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    said = fails("pull", *LINES["pull"])
    assert name in said or (
        name == "ROLLQ_REDIS_URL" and "not an address of Redis: localhost" in said
    )
    assert "sk-secret" not in said


def test_an_environments_name_that_is_too_long_for_a_file_is_no_file() -> None:
    assert environment("a" * 300) == "a" * 300
