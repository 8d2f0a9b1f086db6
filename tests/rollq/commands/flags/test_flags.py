"""Every flag of every command with every kind of wrong value: one clear line that names
the flag.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollq import cli
from rollq.commands import evaluate, jobs, pull, weights
from rollq.commands.flags import types
from rollq.commands.flags.parser import Parser
from rollq_worker.commands import audit, worker
from tests.rollq.commands.conftest import Fails

WHOLE = ("", "-1", "1.5", "nan", "inf", "many", "9" * 30, "0x10", "1e3")
NUMBER = ("", "-1", "nan", "inf", "-inf", "much", "1,5")
LINES: dict[str, tuple[str, ...]] = {
    "submit": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "eval": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "pull": ("--run", "r", "--groups", "1"),
    "show": ("r/g/0",),
    "jobs list": ("r",),
    "jobs requeue": ("r",),
    "jobs drop": ("r",),
    "jobs cancel": ("r", "--all"),
    "audit": ("no-such.jsonl",),
    "engines list": ("big",),
    "engines add": ("big", "http://a:1"),
    "engines remove": ("big", "http://a:1"),
    "engines publish": ("--run", "r", "--step", "1"),
    "engines sync": ("--path", "weights", "--version", "1"),
    "env check": ("shop",),
}
"""What a command needs."""
BY_TYPE: dict[Callable[..., object], Sequence[str]] = {
    types.name: ("", "a b", "{x}", "a/b", "a:b", ".a", "x" * 101, "é"),
    types.tasks: ("", "5-2", "-1", "a-b", "1-", "-", "0-1-2", "0-9007199254740992", "1.5"),
    types.http_url: (
        "",
        "localhost:30000",
        "http://",
        "ftp://host",
        "http://host:99999",
        "http://host:0",
        "http:// host",
    ),
    types.engine_source: (
        "",
        "localhost:30000",
        "ftp://host",
        "file:",
        "redis:",
        "redis:a b",
        "redis://h:1/0",
    ),
    types.expert_shape: (
        "",
        "48",
        "48x8",
        "8x8x4",
        "0x1x1",
        "48x8x128x1",
        "{",
        '{"layers": 48}',
        "48,8,128",
    ),
    types.assignment: ("", "thinking", "=true"),
    jobs.target: ("", "a b", "r/g", "r/g/x", "r//0"),
    pull.extra_names: ("", ",", "a,"),
    pull.filter_name: (
        "",
        "unequal",
        "json",
        "json:",
        ":dumps",
        "a b:c",
        "no_such_module:f",
        "json:none",
        "json:__doc__",
    ),
    pull.tracker: ("", ":shop", "wandb:p:x", "wandb:p:1:2"),
    pull.reward_function: (
        "",
        "json",
        "json:",
        ":dumps",
        "a b:c",
        "no_such_module:f",
        "json:none",
        "json:__doc__",
    ),
    weights.weight_version: ("", "v" * 257),
    evaluate.place: ("", "@200", "a b", "a/b@200"),
    worker.agent_file: (
        "",
        "react",
        "installed",
        "solver@0123456789ab",
        "no-such.py:play",
        "no-such.sh",
    ),
    types.listen_address: ("", "x", "host:", "h:65536"),
    worker.queue_names: ("", ",", "a,", "a b", "a,{x}"),
    audit.version_names: ("", ","),
}
UNCHECKED = set(
    "env split agent broker redis tokenizer template config host dir out file jobs what "
    "path api_key_file "
    "reward html".split()
)
"""Plain texts: addresses, names and paths. They are checked when they are used."""


def all_flags(parser: Parser | None = None) -> Iterator[tuple[str, str, argparse.Action]]:
    """The flags of all commands that take a value: the command's name, the flag's name, and what
    argparse knows.
    """
    parser = parser or cli.parser()
    for command in parser.commands.parsers.values() if parser.commands else ():
        yield from all_flags(command)
    for action in {id(action): action for action in parser.flags.values()}.values():
        if action.nargs != 0 and not parser.commands:
            yield parser.prog.removeprefix("rollq "), action.option_strings[-1], action


def wrong_values(action: argparse.Action) -> Sequence[str]:
    """Wrong values of the flag's type."""
    kind: Any = action.type
    made_by = getattr(kind, "__qualname__", "").partition(".")[0]
    if action.choices or made_by == "one_of":
        return ("", "fun", "TRAIN")
    if made_by == "whole":
        return WHOLE
    if made_by == "number":
        return NUMBER
    return BY_TYPE.get(kind, ())


FLAGS = [
    (command, flag, wrong[0])
    for command, flag, action in all_flags()
    if (wrong := wrong_values(action))
]
VALUES = [
    (action.type, wrong)
    for _, _, action in all_flags()
    for wrong in wrong_values(action)
    if action.type
]


def test_every_flag_is_tested() -> None:
    left = {
        f"{command} {a.dest}"
        for command, _, a in all_flags()
        if not wrong_values(a) and a.dest not in UNCHECKED
    }
    assert left == set()
    assert len(FLAGS) > 40


@pytest.mark.parametrize(("command", "flag", "wrong"), FLAGS)
def test_a_flag_with_a_wrong_value_is_named(
    fails: Fails, command: str, flag: str, wrong: str
) -> None:
    said = fails(*command.split(), *LINES.get(command, ()), f"{flag}={wrong}")
    assert "Error" not in said and "invalid" not in said.partition("invalid choice")[0]
    assert f"{flag}: " in said
    assert f"rollq {command} --help" in said


def test_every_wrong_value_of_a_type_is_refused() -> None:
    assert [(kind, wrong) for kind, wrong in VALUES if not _refuses(kind, wrong)] == []


def _refuses(kind: Any, text: str) -> bool:
    try:
        kind(text)
    except argparse.ArgumentTypeError:
        return True
    return False


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
