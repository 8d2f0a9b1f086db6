"""Every flag of every command with every kind of wrong value: one clear line that names it, and nothing done."""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rollq import cli
from rollq.commands import flags, job_flags, submit
from rollq.ledger.ledger import Ledger
from rollq_worker.commands import audit

WHOLE = ("", "-1", "1.5", "nan", "inf", "many", "9" * 30, "0x10", "1e3")
NUMBER = ("", "-1", "nan", "inf", "-inf", "much", "1,5")
LINES: dict[str, tuple[str, ...]] = {
    "submit": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "eval": ("--run", "r", "--env", "shop", "--tasks", "0-3"),
    "pull": ("--run", "r", "--groups", "1"),
    "show": ("r/g/0",),
    "dead": ("--run", "r"),
    "requeue": ("--run", "r"),
    "drop": ("--run", "r"),
    "cancel": ("--run", "r", "--all"),
    "audit": ("no-such.jsonl",),
}
"""What a command cannot do without."""
BY_TYPE: dict[Callable[..., object], Sequence[str]] = {
    flags.name: ("", "a b", "{x}", "a/b", "a:b", ".a", "x" * 101, "é"),
    flags.tasks: ("", "5-2", "-1", "a-b", "1-", "-", "0-1-2", "0-9007199254740992", "1.5"),
    flags.http_url: ("", "localhost:30000", "http://", "ftp://host", "http://host:99999", "http://host:0"),
    job_flags.user: (
        "",
        "gpt",
        "openai",
        "openai:here",
        "openai::model",
        "{",
        '{"a": 1}',
        '{"kind": 1}',
        '{"kind": "x"} y',
    ),
    submit.budgets: ("", "engine", "engine=0", "engine=-1", "engine=1.5", "fun=1", "cancelled=1", "env=1,env=2"),
    audit.names: ("", ","),
}
UNCHECKED = {"env", "split", "broker", "redis", "tokenizer", "config", "host", "dir", "out", "file", "jobs", "what"}
"""Plain texts: addresses, names and paths are looked at when they are used, and tested below or with what uses them."""


def all_flags() -> Iterator[tuple[str, argparse.Action]]:
    """All of all commands, but for switches."""
    [commands] = [a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    for command, parser in commands.choices.items():
        for action in parser._actions:
            if action.nargs != 0:
                yield command, action


def wrong_values(action: argparse.Action) -> Sequence[str]:
    kind = action.type
    if action.choices:
        return ("", "fun", "TRAIN")
    if getattr(kind, "__qualname__", "") == flags.whole(0).__qualname__:  # type: ignore[attr-defined]
        return WHOLE if kind("1") == 1 and _refuses(kind, "0") is False else (*WHOLE, "0")  # type: ignore[misc, operator]
    if getattr(kind, "__qualname__", "") == flags.number(0).__qualname__:  # type: ignore[attr-defined]
        return NUMBER
    return BY_TYPE.get(kind, ())  # type: ignore[call-overload, no-any-return]


def _refuses(kind: object, text: str) -> bool:
    try:
        kind(text)  # type: ignore[operator]
    except argparse.ArgumentTypeError:
        return True
    return False


CASES = [
    (command, action.option_strings[-1], wrong)
    for command, action in all_flags()
    if action.option_strings
    for wrong in wrong_values(action)
]


def fails(capsys: pytest.CaptureFixture[str], *line: str, code: int = 2) -> str:
    assert cli.main(line) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("rollq: ")
    assert said.err.count("\n") == 1, said.err
    assert "Error" not in said.err, said.err
    return said.err


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROLLQ_") and name != "ROLLQ_SHARED"]:
        monkeypatch.delenv(name)


def test_no_flag_is_left_out() -> None:
    left = {f"{command} {a.dest}" for command, a in all_flags() if not wrong_values(a) and a.dest not in UNCHECKED}
    assert left == set()
    assert len(CASES) > 300


@pytest.mark.parametrize(("command", "flag", "wrong"), CASES)
def test_a_wrong_value(capsys: pytest.CaptureFixture[str], command: str, flag: str, wrong: str) -> None:
    said = fails(capsys, command, *LINES.get(command, ()), f"{flag}={wrong}")
    assert f"{flag}: " in said
    assert f"rollq {command} --help" in said


SEEDS = 2**53
CANNOT_BE = [
    (("--seed", str(SEEDS - 1), "--epochs", "2"), "seed"),
    (("--seed", str(SEEDS - 1), "--refill", "1"), "seed"),
    (("--env", ""), "--env must be a name"),
    (("--split", ""), "--split must be a name"),
    (("--env", "x" * 93), "group"),
    (("--env", "x" * 92, "--epochs", "1000"), "group"),
    (("--env", "x" * 92, "--tasks", "0-99999"), "group"),
    (("--env", "x" * 92, "--refill", "1000"), "group"),
    (("--env", "-x"), "group"),
    (("--size", "2", "--min-viable", "3"), "--min-viable 3 is more than --size 2"),
    (("--user", '{"kind": "scripted", "x": NaN}'), "nan"),
    (("--user", '{"kind": "scripted", "x": 18446744073709551616}'), "64 bits"),
    (("--user", '{"kind": "scripted", "x": ' + "[" * 70 + "]" * 70 + "}"), "nested more than 64 deep"),
]


@pytest.mark.parametrize(("flags", "said"), CANNOT_BE, ids=[" ".join(flags)[:40] for flags, _ in CANNOT_BE])
def test_a_line_with_a_job_that_cannot_be_submits_none(
    redis_url: str, ledger: Ledger, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    joined = [f"{flag}={value}" for flag, value in zip(flags[::2], flags[1::2], strict=True)]
    assert said in fails(capsys, "submit", *LINES["submit"], "--redis", redis_url, *joined)
    assert ledger.stats()["submitted"] == 0


def test_the_largest_seed_will_do(redis_url: str, ledger: Ledger) -> None:
    line = ("submit", *LINES["submit"], "--seed", str(SEEDS - 2), "--epochs", "2", "--redis", redis_url)
    assert cli.main(line) == 0
    assert ledger.job("r/shop.train.3.e1/0").job.seed == SEEDS - 1  # type: ignore[union-attr]


@pytest.mark.parametrize("command", ["submit", "eval", "pull", "stats", "dead"])
@pytest.mark.parametrize(
    "address", ["localhost", "http://h", "redis://", "redis://h:port/0", "redis://h/x", "unix://", "redis://h:0"]
)
def test_a_wrong_address(capsys: pytest.CaptureFixture[str], command: str, address: str) -> None:
    assert "not an address of Redis" in fails(capsys, command, *LINES.get(command, ()), f"--redis={address}")


@pytest.mark.parametrize("command", ["submit", "eval"])
def test_a_wrong_broker(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert "not the address of a broker" in fails(capsys, command, *LINES[command], "--broker", "localhost")


@pytest.mark.parametrize("command", ["pull", "eval"])
def test_a_file_that_cannot_be(capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path) -> None:
    line = (command, *LINES[command], "--redis", "redis://127.0.0.1:1/0", "--out")
    assert "No such file or directory" in fails(capsys, *line, str(tmp_path / "none" / "x.jsonl"))
    assert "Is a directory" in fails(capsys, *line, str(tmp_path))
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    assert "notes.txt:1 is not a line of JSON" in fails(capsys, *line, str(other), code=1)
    assert other.read_text() == "my notes\n"


def test_files_to_read_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file no-such.jsonl" in fails(capsys, "show", "no-such.jsonl")
    assert "no-such.jsonl" in fails(capsys, "audit", "no-such.jsonl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ROLLQ_REDIS_URL", "localhost"),
        ("ROLLQ_BROKER_URL", "localhost"),
        ("ROLLQ_ENGINE_URL", "localhost:30000"),
        ("ROLLQ_CONCURRENCY", "many"),
        ("ROLLQ_CONCURRENCY", "0"),
        ("ROLLQ_USER_ENDPOINTS", "local"),
        ("ROLLQ_USER_ENDPOINTS", "local=http://h,api_key=sk-secret"),
    ],
)
def test_a_wrong_setting_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    said = fails(capsys, "pull", *LINES["pull"])
    assert name in said or (name == "ROLLQ_REDIS_URL" and "not an address of Redis: localhost" in said)
    assert "sk-secret" not in said
