"""`--set KEY=VALUE` and run files: settings of `submit`, `eval` and `demo` beside their flags.

A key is a field of `Job` or of the command's own settings. Below a mapping and below `budget` it is
dotted: `sampling.temperature`. A new field is a new key; its class checks the value. Flags override
--set, which overrides the run file.
"""

import argparse
import ast
import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

from rollq.commands.flags.files import agent, agent_options, environment
from rollq.commands.flags.parser import Parser
from rollq.commands.flags.types import assignment, expert_shape, json_or_text, name, tasks
from rollq.errors import ContractError, FailureClass, SettingsError
from rollq.job import FIELD_TYPES, MAPPINGS, Budget, Job, Json
from rollq.sampling import PARAMETERS

Own = TypeVar("Own")
FILLED_IN = ("group", "sample", "task", "seq")
"""Fields of a job that follow from the tasks."""
WITHIN: Mapping[str, tuple[str, ...]] = {
    "budget": tuple(field.name for field in fields(Budget)),
    "sampling": tuple(PARAMETERS),
    "max_failures": tuple(
        failure for failure in FailureClass if failure is not FailureClass.CANCELLED
    ),
}
"""Keys of which only these parts exist."""
OF_A_MACHINE = {
    "redis": "ROLLQ_REDIS_URL",
    "broker": "ROLLQ_BROKER_URL",
    "engine": "ROLLQ_ENGINE_URL",
}
USERS = ("scripted", "oracle", "openai")


def user(text: str) -> dict[str, Json]:
    """An argument type: a user simulator without options, or `openai:ENDPOINT:MODEL`."""
    kind, *rest = text.split(":", 2)
    if kind in USERS and kind != "openai" and not rest:
        return {"kind": kind}
    if kind == "openai" and len(rest) == 2 and all(rest):
        return {"kind": kind, "endpoint": rest[0], "model": rest[1]}
    raise argparse.ArgumentTypeError(
        f"expected scripted, oracle, openai:ENDPOINT:MODEL or a table, not {text!r}"
    )


READERS: Mapping[str, Callable[[str], Any]] = {
    "run": name,
    "env": environment,
    "agent": agent,
    "user": user,
    "tasks": tasks,
    "routed_experts": expert_shape,
}
"""Readers of the keys whose value may be written shorter than it is."""


FLAGS = {"run": "run_name", "env": "env", "split": "split", "tasks": "tasks", "size": "size"}
"""Keys that may be flags of their own, and argparse's names for them."""


def add_set(parser: Parser, settings: type, filled: tuple[str, ...] = ()) -> None:
    """`--set`, and its keys in the command's help."""
    parser.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of the keys below, with a value that is JSON or text; may be repeated",
    )
    parser.more_help = partial(_key_help, parser, settings, filled)
    parser.keys = list(keys(settings, filled))


def add_config(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE.toml",
        help="a run file: keys, and run, env, split, tasks and size, as TOML",
    )


class Values(dict[str, Any]):
    """Values by key. `settings` is the class of the command's own settings; `filled` are fields of
    a job that the command itself fills in.
    """

    def __init__(self, settings: type, filled: tuple[str, ...] = (), **defaults: Json) -> None:
        super().__init__(defaults)
        self._setting_names = {field.name for field in fields(settings)}
        self._keys = list(keys(settings, filled))
        self._agent_options: Mapping[str, Json] = {}

    def read(self, args: argparse.Namespace) -> "Values":
        """Takes the values of a command line. Raises SettingsError."""
        path = getattr(args, "config", None)
        if path:
            for key, value in _toml(path).items():
                self.assign(path, key, value)
        for key, text in args.set:
            self.assign("--set", key, text if _is_text(key) else json_or_text(text))
        for key, flag in FLAGS.items():
            value = vars(args).get(flag)
            if value is not None:
                self[key] = value
        return self

    def assign(self, where: str, key: str, value: Json) -> None:
        """Sets a key, or a part of one. Raises SettingsError for an unknown key, and for a value
        that is not a table where one belongs.
        """
        first, dot, part = key.partition(".")
        if dot:
            self._assign_part(where, first, part, value)
        elif self._parts(key):
            self._check_table(where, key, value)
            for name in value:
                self._assign_part(where, key, name, value[name])
        elif key not in self._keys:
            raise SettingsError(f"{where}: {self._unknown(key)}")
        else:
            value = self._read_short(where, key, value)
            if key in MAPPINGS:
                self._check_table(where, key, value)
            self[key] = value

    def _parts(self, key: str) -> list[str]:
        """The parts of a key of which only these exist."""
        return [part for part in self._keys if part.startswith(f"{key}.")]

    def _assign_part(self, where: str, first: str, part: str, value: Json) -> None:
        takes_any = first in MAPPINGS and first in self._keys
        if (takes_any or self._parts(first)) and (not part or "." in part):
            raise SettingsError(
                f"{where}: {first}.{part}: write {first}.NAME, and what is below NAME as JSON or a "
                "TOML table"
            )
        if not takes_any and f"{first}.{part}" not in self._keys:
            raise SettingsError(f"{where}: {self._unknown(f'{first}.{part}')}")
        self[first] = {**self.get(first, {}), part: value}

    def _check_table(self, where: str, key: str, value: Json) -> None:
        if not isinstance(value, Mapping):
            raise SettingsError(
                f"{where}: {key}: expected a table, or parts as {key}.NAME, not {value!r}"
            )

    def _read_short(self, where: str, key: str, value: Json) -> Json:
        """The value of a key that may be written shorter than it is."""
        if key not in READERS or not (isinstance(value, str) or key == "tasks"):
            return value
        text = str(value)
        try:
            if key == "agent":
                self._agent_options = agent_options(text)
            return READERS[key](text)
        except argparse.ArgumentTypeError as e:
            raise SettingsError(f"{where}: {key}: {e}") from e

    def _unknown(self, key: str) -> str:
        if key in OF_A_MACHINE:
            return f"{key} belongs to a machine, not to a run: set {OF_A_MACHINE[key]}"
        first, _, word = key.rpartition(".")
        siblings = {other.rpartition(".")[2]: other for other in self._parts(first) or self._keys}
        similar = [name for name in siblings if name.startswith(word)]
        similar = similar or difflib.get_close_matches(word, siblings, 1)
        if similar:
            return f"there is no key {key}; did you mean {siblings[similar[0]]}?"
        others = dict.fromkeys(other.partition(".")[0] for other in self._keys)
        return f"there is no key {key}; there are {', '.join(others)}"

    def need(self, *needed: str) -> None:
        """Raises SettingsError for a key that has no value."""
        for key in needed:
            if key not in self:
                raise SettingsError(f"--{key} is missing, and no run file has it (--config)")

    def job(self, **more: Any) -> Job:
        """The job of these values. Raises SettingsError."""
        values = {**self, **more}
        for key in self._setting_names:
            values.pop(key, None)
        values["agent_args"] = {**self._agent_options, **values.get("agent_args", {})}
        # Whatever the engine's default is.
        values["sampling"] = {"temperature": 1.0, **values.get("sampling", {})}
        try:
            return Job.of(values)
        except ContractError as e:
            raise SettingsError(str(e)) from e

    def settings(self, kind: type[Own]) -> Own:
        """The command's own settings. Raises SettingsError."""
        return kind(**{key: value for key, value in self.items() if key in self._setting_names})


def _is_text(key: str) -> bool:
    """True if the key's value is a text, even one that looks like JSON."""
    return FIELD_TYPES.get(key) is str


def _toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise SettingsError(f"{path} is not TOML: {e}") from e


def keys(settings: type, filled: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys of a command, each part of a budget and each sampling parameter apart."""
    for field in (*fields(Job), *fields(settings)):
        if field.name in (*FILLED_IN, *filled):
            continue
        if field.name in WITHIN:
            yield from (f"{field.name}.{part}" for part in WITHIN[field.name])
        else:
            yield field.name


def _key_help(parser: Parser, settings: type, filled: tuple[str, ...]) -> str:
    """The keys that are not flags, with the first sentence of the string below each field."""
    rows: dict[str, str] = {}
    for kind in (Job, settings):
        docs = field_docs(kind)
        for field in fields(kind):
            if field.name == "budget":
                for part, text in field_docs(Budget).items():
                    rows[f"budget.{part}"] = f"{text} ({getattr(Budget(), part)})"
            elif field.name not in (*FILLED_IN, *filled) and f"--{field.name}" not in parser.flags:
                key, text = _help_row(field.name, docs[field.name], field.default)
                rows[key] = text
    lines = []
    for key, text in rows.items():
        line = f"{key:<21} {text}"
        lines.append(fill(line, 79, initial_indent="  ", subsequent_indent=" " * 24))
    return "\nkeys:\n" + "\n".join(lines) + "\n"


def _help_row(key: str, text: str, default: Any) -> tuple[str, str]:
    if key in WITHIN:
        return f"{key}.NAME", f"{text}: {', '.join(WITHIN[key])}"
    if default not in (MISSING, None, "", False, 0):
        text += f" ({default})"
    return f"{key}.NAME" if key in MAPPINGS else key, text


def field_docs(kind: type) -> dict[str, str]:
    """The first sentence of the string below each field, without its full stop."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        [tree] = ast.parse(inspect.getsource(base)).body
        for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(field.target, ast.Name)
            ):
                text = " ".join(str(ast.literal_eval(below.value)).split())
                docs[field.target.id] = re.split(r"\.(?= |$)", text)[0]
    return docs
