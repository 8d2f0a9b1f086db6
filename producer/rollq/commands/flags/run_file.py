"""Run files: a command's flags in TOML, named as the flags are, with underscores. Flags on the command line override
the file.

Each value is checked as the flag's value is. A run file holds no addresses: they belong to a machine, not to a run.
"""

import argparse
import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollq.errors import SettingsError

ADDRESSES = {
    "redis": "ROLLQ_REDIS_URL",
    "broker": "ROLLQ_BROKER_URL",
    "tokenizer": "ROLLQ_TOKENIZER",
    "template": "ROLLQ_TEMPLATE",
}
TABLES: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "user": json.dumps,
    "budget": lambda table: ",".join(f"{failure}={count}" for failure, count in table.items()),
    "labels": json.dumps,
    "template_kwargs": json.dumps,
    "agent_args": json.dumps,
    "reward_args": json.dumps,
    "routed_experts": json.dumps,
}
"""Flags whose value may be a table, each with a function that writes the table as a command line would."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.toml", help="read flags from a file, by their names: max_turns = 20")


def apply(parser: argparse.ArgumentParser, line: Sequence[str]) -> None:
    """Makes the values of the run file that the command line names the command's defaults. A wrong file ends the
    command."""
    flags = {_name(action): action for action in parser._actions if action.option_strings}
    if "config" not in flags:
        return
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="?")
    if (path := finder.parse_known_args(line)[0].config) is None:
        return
    try:
        for name, value in _read(path).items():
            action = _find(flags, path, name)
            try:
                parser.set_defaults(**{action.dest: _value(action, value)})
            except (argparse.ArgumentTypeError, TypeError, ValueError) as e:
                raise SettingsError(f"{path}: {name}: {e}") from e
            action.required = False
    except SettingsError as e:
        parser.error(str(e))


def _name(action: argparse.Action) -> str:
    return next(name for name in action.option_strings if name.startswith("--"))[2:].replace("-", "_")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise SettingsError(f"{path} is not TOML: {e}") from e


def _find(flags: Mapping[str, argparse.Action], path: str, name: str) -> argparse.Action:
    if name in ADDRESSES:
        raise SettingsError(f"{path}: {name}: belongs to a machine, not to a run: set {ADDRESSES[name]}")
    known = [known for known in flags if known not in ("help", "config", *ADDRESSES)]
    if name in known:
        return flags[name]
    close = difflib.get_close_matches(name.replace("-", "_"), known, 1)
    others = f"did you mean {close[0]}?" if close else f"the flags are {', '.join(known)}"
    raise SettingsError(f"{path}: {name!r} is not a flag; {others}")


def _value(action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:
        if isinstance(value, bool):
            return value
        raise argparse.ArgumentTypeError(f"expected true or false, not {value!r}")
    convert = action.type if callable(action.type) else str
    if isinstance(value, dict) and (written := TABLES.get(action.dest)):
        return convert(written(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        expected = "a table or a string" if action.dest in TABLES else "a number or a string"
        kind = "table" if isinstance(value, dict) else type(value).__name__
        raise argparse.ArgumentTypeError(f"expected {expected}, not a {kind}")
    if action.choices and value not in action.choices:
        raise argparse.ArgumentTypeError(f"expected {' or '.join(action.choices)}, not {value!r}")
    found = convert(str(value))
    if isinstance(value, str) and isinstance(found, int | float):
        raise argparse.ArgumentTypeError(f"expected a number, not the string {value!r}")
    if not isinstance(value, str) and not isinstance(found, int | float | range):
        raise argparse.ArgumentTypeError(f"expected a string, not {value!r}")
    return found
