"""`--set KEY=VALUE` and run files: what `submit`, `eval` and `demo` may be told beside their flags.

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
from textwrap import fill
from typing import Any, TypeVar

from rollq.commands.flags.files import agent, environment
from rollq.commands.flags.parser import Parser
from rollq.commands.flags.types import assignment, expert_shape, json_or_text, name, tasks
from rollq.errors import ContractError, FailureClass, SettingsError
from rollq.job import MAPPINGS, Budget, Job, Json
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
"""Keys whose parts are known."""
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
"""Keys whose value may be written shorter than it is, and what reads such a text."""


FLAGS = {"run": "run_name", "env": "env", "split": "split", "tasks": "tasks", "size": "size"}
"""Keys that may be flags of their own, and argparse's names for them."""


def add_set(parser: Parser, own: type, filled: tuple[str, ...] = ()) -> None:
    """`--set`, and its keys in the command's help."""
    parser.add_argument(
        "--set",
        type=assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of the keys below, with a value that is JSON or text; may be repeated",
    )
    parser.more_help = partial(_key_help, parser, own, filled)


def add_config(parser: Parser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE.toml",
        help="a run file: keys, and run, env, split, tasks and size, as TOML",
    )


class Values(dict[str, Any]):
    """Values by key, as they were given. `own` is the class of the command's own settings; `filled`
    are fields of a job that the command itself fills in.
    """

    def __init__(self, own: type, filled: tuple[str, ...] = (), **defaults: Json) -> None:
        super().__init__(defaults)
        self._own = {field.name for field in fields(own)}
        self._known = list(keys(own, filled))

    def read(self, args: argparse.Namespace) -> "Values":
        """Takes what a command line says. Raises SettingsError."""
        if path := getattr(args, "config", None):
            for key, value in _toml(path).items():
                self.assign(path, key, value)
        for key, text in args.set:
            self.assign("--set", key, text if _is_text(key) else json_or_text(text))
        self.update(
            {
                key: value
                for key, flag in FLAGS.items()
                if (value := vars(args).get(flag)) is not None
            }
        )
        return self

    def assign(self, where: str, key: str, value: Json) -> None:
        """Raises SettingsError for an unknown key, and for a value that is no table where one
        belongs.
        """
        first, dot, part = key.partition(".")
        parts = [known for known in self._known if known.startswith(f"{first}.")]
        free = first in MAPPINGS and first in self._known
        if dot and (parts or free) and (not part or "." in part):
            raise SettingsError(
                f"{where}: {key}: write {first}.NAME, and what is below NAME as "
                "JSON or a TOML table"
            )
        if not (key in self._known or (dot and free) or (parts and not dot)):
            raise SettingsError(f"{where}: {self._unknown(key)}")
        if dot:
            self[first] = {**self.get(first, {}), part: value}
            return
        if key in READERS and (isinstance(value, str) or key == "tasks"):
            try:
                value = READERS[key](str(value))
            except argparse.ArgumentTypeError as e:
                raise SettingsError(f"{where}: {key}: {e}") from e
        if (parts or free) and not isinstance(value, Mapping):
            raise SettingsError(
                f"{where}: {key}: expected a table, or parts as {key}.NAME, not {value!r}"
            )
        for part in value if parts else ():
            self.assign(where, f"{key}.{part}", value[part])
        if not parts:
            self[key] = value

    def _unknown(self, key: str) -> str:
        if key in OF_A_MACHINE:
            return f"{key} belongs to a machine, not to a run: set {OF_A_MACHINE[key]}"
        first, _, word = key.rpartition(".")
        beside = [known for known in self._known if known.startswith(f"{first}.")] or self._known
        last = {known.rpartition(".")[2]: known for known in beside}
        close = [name for name in last if name.startswith(word)] or difflib.get_close_matches(
            word, last, 1
        )
        others = ", ".join(dict.fromkeys(known.partition(".")[0] for known in self._known))
        return f"there is no key {key}; " + (
            f"did you mean {last[close[0]]}?" if close else f"there are {others}"
        )

    def need(self, *needed: str) -> None:
        """Raises SettingsError for a key that has no value."""
        for key in needed:
            if key not in self:
                raise SettingsError(f"--{key} is missing, and no run file has it (--config)")

    def job(self, **more: Any) -> Job:
        """The job of these values. Raises SettingsError."""
        given = {key: value for key, value in self.items() if key not in self._own} | more
        given["agent_args"] = {
            **getattr(given.get("agent"), "args", {}),
            **given.get("agent_args", {}),
        }
        given["sampling"] = {
            "temperature": 1.0,
            **given.get("sampling", {}),
        }  # whatever the engine's default is
        try:
            return Job.of(given)
        except ContractError as e:
            raise SettingsError(str(e)) from e

    def own(self, kind: type[Own]) -> Own:
        """The command's own settings. Raises SettingsError."""
        return kind(**{key: value for key, value in self.items() if key in self._own})


def _is_text(key: str) -> bool:
    """Whether the key's value is a text, even one that looks like JSON."""
    return any(field.name == key and field.type is str for field in fields(Job))


def _toml(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise SettingsError(f"{path} is not TOML: {e}") from e


def keys(own: type, filled: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys of a command, each part of a budget and each sampling parameter apart."""
    for kind in (Job, own):
        for field in fields(kind):
            if field.name not in (*FILLED_IN, *filled):
                yield from (f"{field.name}.{part}" for part in WITHIN.get(field.name, ()))
                yield from () if field.name in WITHIN else (field.name,)


def _key_help(parser: Parser, own: type, filled: tuple[str, ...]) -> str:
    """The keys that are no flags, with the first sentence of what their class says of each."""
    rows: dict[str, str] = {}
    for kind in (Job, own):
        said = field_docs(kind)
        for field in fields(kind):
            if field.name == "budget":
                rows |= {
                    f"budget.{part}": f"{text} ({getattr(Budget(), part)})"
                    for part, text in field_docs(Budget).items()
                }
            elif field.name not in (*FILLED_IN, *filled) and f"--{field.name}" not in parser.flags:
                rows |= _row(field.name, said[field.name], field.default)
    lines = [f"{key:<21} {text}" for key, text in rows.items()]
    return "\nkeys:\n" + "".join(
        fill(line, 79, initial_indent="  ", subsequent_indent=" " * 24) + "\n" for line in lines
    )


def _row(key: str, said: str, default: Any) -> dict[str, str]:
    if key in WITHIN:
        return {f"{key}.NAME": f"{said}: {', '.join(WITHIN[key])}"}
    shown = "" if default in (MISSING, None, "", False, 0) else f" ({default})"
    return {f"{key}.NAME" if key in MAPPINGS else key: said + shown}


def field_docs(kind: type) -> dict[str, str]:
    """The first sentence of the string below each field, without its full stop."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        [tree] = ast.parse(inspect.getsource(base)).body
        for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(field.target, ast.Name)
            ):
                text = " ".join(str(ast.literal_eval(below.value)).split())
                found[field.target.id] = re.split(r"\.(?= |$)", text)[0]
    return found
