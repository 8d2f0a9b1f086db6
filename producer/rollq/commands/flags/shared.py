"""Flags that several commands share, and the types of their values. An error says in one line what is expected."""

import argparse
import contextlib
import json
import math
import sys
import urllib.parse
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from rollq.errors import ContractError, RollqError, SettingsError
from rollq.extras import install_line
from rollq.job import ENVIRONMENT_FILES, NAME, Purpose
from rollq.settings import engine_address
from rollq.trajectory_extras import ExpertShape
from rollq.urls import mask_url
from rollq.worker_package import for_clients

E = TypeVar("E", bound=StrEnum)

AGENTS = ("tool-calling", "act", "react", "few-shot")
"""Agent strategies. few-shot needs a file of examples."""
AGENT_FILE_ENDINGS = (".py", ".sh")
LARGEST = 2**53 - 1
"""The largest whole number that is allowed, because the ledger counts in doubles."""


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """An argument type: a whole number in [least, most]."""

    def parse(text: str) -> int:
        limit = ""
        with contextlib.suppress(ValueError):
            if least <= (value := int(text)) <= most:
                return value
            limit = _limit(value, most)
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}{limit}, not {text!r}")

    return parse


def _limit(value: float, most: float) -> str:
    """The upper bound in words if the value is above it; empty for values that are wrong for another reason."""
    return f" and at most {most}" if value > most else ""


def number(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """An argument type: a finite number in [least, most], or in (least, most] with `above`."""
    bounds = f"{'above' if above else 'of at least'} {least:g}" + (f" and at most {most:g}" if most < math.inf else "")

    def parse(text: str) -> float:
        limit = ""
        with contextlib.suppress(ValueError):
            value = float(text)
            if math.isfinite(value) and least <= value <= most and not (above and value == least):
                return value
            limit = _limit(value, sys.float_info.max) if most == math.inf else ""
        raise argparse.ArgumentTypeError(f"expected a number {bounds}{limit}, not {text!r}")

    return parse


def one_of(kind: type[E]) -> Callable[[str], E]:
    """An argument type: a value of the enumeration."""

    def parse(text: str) -> E:
        with contextlib.suppress(ValueError):
            return kind(text)
        raise argparse.ArgumentTypeError(f"expected {' or '.join(kind)}, not {text!r}")

    return parse


def words(kind: type[StrEnum]) -> str:
    """What help shows for such a value."""
    return f"{{{','.join(kind)}}}"


def tasks(text: str) -> range:
    """An argument type: `A-B`, both ends included, or a single task."""
    first, dash, last = text.partition("-")
    limit = ""
    with contextlib.suppress(ValueError):
        low, high = int(first), int(last if dash else first)
        if 0 <= low <= high <= LARGEST and first.strip().isdecimal():
            return range(low, high + 1)
        limit = _limit(max(low, high), LARGEST)
    raise argparse.ArgumentTypeError(
        f"expected A-B with A not above B{limit}, both included, or one task, not {text!r}"
    )


def name(text: str) -> str:
    """An argument type: the name of a run or a group."""
    if NAME.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(
        f"expected a name (up to 100 letters, digits, '.', '_', '-'; first a letter or digit), not {text!r}"
    )


class GivenName(str):
    """The name of an environment or an agent."""

    given: str
    """What the user wrote: the name, or a file."""

    @classmethod
    def of(cls, name: str, given: str) -> "GivenName":
        found = cls(name)
        found.given = given
        return found


def environment(text: str) -> GivenName:
    """An argument type: an environment's name, or a file `game.py:load` or `maths.jsonl`, which becomes its name
    `game@HASH`.

    This process and its children then know the file.
    """
    is_file = text.partition(":")[0].endswith(ENVIRONMENT_FILES)
    return GivenName.of(_name_of_file(text, "add_environment_file") if is_file else text, text)


def _name_of_file(text: str, add: str) -> str:
    try:
        return str(getattr(for_clients(), add)(text))
    except RollqError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    except ImportError as e:
        remedy = install_line("worker")
        raise argparse.ArgumentTypeError(f"the file {text!r} needs the worker's packages: {remedy}") from e


def http_url(text: str) -> str:
    """An argument type: the address of an HTTP server."""
    with contextlib.suppress(ValueError):
        url = urllib.parse.urlsplit(text)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return text.rstrip("/")
    raise argparse.ArgumentTypeError(f"expected an address like http://127.0.0.1:30000, not {mask_url(text)!r}")


def engine_source(text: str) -> str:
    """An argument type: the address of an engine, or of a list of engines."""
    try:
        return engine_address(text)
    except SettingsError as e:
        raise argparse.ArgumentTypeError(str(e).partition(": ")[2]) from None


def add_engines(parser: argparse.ArgumentParser, default: str = "") -> None:
    """`--engine`, as often as there are engines."""
    parser.add_argument(
        "--engine",
        dest="engines",
        action="append",
        type=engine_source,
        metavar="URL",
        help="SGLang server; repeat the flag for several. file:PATH and redis:NAME are lists of engines that may change"
        f" (ROLLQ_ENGINE_URL{default})",
    )


def add_run(parser: argparse.ArgumentParser, *, required: bool = True, help: str = "name of the run") -> None:
    parser.add_argument("--run", dest="run_name", type=name, required=required, metavar="RUN", help=help)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout", type=number(0), metavar="S", help="give up after this many seconds, with exit code 1 (never)"
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="append the trajectories to this file, each job once: JSON Lines, or a folder of Parquet files when it"
        " ends in .parquet (extra parquet)",
    )


def add_purpose(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("--purpose", type=one_of(Purpose), default=Purpose.TRAIN, metavar=words(Purpose), help=help)


def add_redis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redis", metavar="URL", help="address of the run's Redis (ROLLQ_REDIS_URL, else redis://127.0.0.1:6379/0)"
    )


def add_durability(parser: argparse.ArgumentParser) -> None:
    from rollq.servers.durability import Durability  # imports redis, which `rollq --version` does without

    parser.add_argument(
        "--durability",
        type=one_of(Durability),
        default=Durability.ASYNC,
        metavar=words(Durability),
        help="where what is submitted or acknowledged must be first: in Redis's memory, on a replica, or on its disk"
        " (%(default)s)",
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", metavar="URL", help="address of Celery's broker (ROLLQ_BROKER_URL, else --redis)")


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="directory with tokenizer.json, tokenizer_config.json and a chat template, or a name on a hub"
        " (ROLLQ_TOKENIZER, else the small tokenizer that rollq ships)",
    )


def add_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template",
        metavar="NAME",
        help="chat template in place of the tokenizer's own: the name of a training template (`rollq doctor` names the"
        " one that fits), or a file (ROLLQ_TEMPLATE)",
    )


def labels(text: str) -> dict[str, str]:
    """An argument type: one label, `key=text`, or a JSON object of texts."""
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if all(isinstance(value, str) for value in found.values()):
                return dict(found)
    key, equals, value = text.partition("=")
    if key and equals and not text.startswith("{"):
        return {key: value}
    raise argparse.ArgumentTypeError(f"expected KEY=TEXT or a JSON object of texts, not {text!r}")


def assignments(text: str) -> dict[str, Any]:
    """An argument type: `name=value` with a value in JSON, or a JSON object of such values."""
    name, equals, value = text.partition("=")
    with contextlib.suppress(ValueError):
        if text.startswith("{"):
            found = json.loads(text)
            return dict(found)
        if name and equals:
            return {name: json.loads(value)}
    if name and equals and not text.startswith("{"):
        meant = {"true": "true", "false": "false", "none": "null"}.get(value.lower(), json.dumps(value))
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON; did you mean {name}={meant}")
    raise argparse.ArgumentTypeError(f"expected NAME=JSON or a JSON object, not {text!r}")


def expert_shape(text: str) -> dict[str, Any]:
    """An argument type: the shape of a model's routing, as 48x8x128 or as a JSON object."""
    names = ("layers", "top_k", "experts")
    try:
        sizes = [int(size) for size in text.split("x")] if not text.startswith("{") else []
        return asdict(ExpertShape.read(dict(zip(names, sizes, strict=True)) if sizes else json.loads(text)))
    except ContractError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"expected LAYERSxTOP_KxEXPERTS, as in 48x8x128, not {text!r}") from e


class Merge(argparse.Action):
    """Adds the entries of this flag to those of earlier ones and of the run file."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **values})


def add_template_kwargs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template-kwargs",
        action=Merge,
        type=assignments,
        default={},
        metavar="NAME=JSON",
        help="an argument for the chat template, such as enable_thinking=false, or a JSON object of them; may be"
        " repeated (`rollq doctor` names those that it reads)",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def agent(text: str) -> tuple[GivenName, dict[str, Any]]:
    """An argument type: the name of an agent, and the agent_args that the flag itself gives.

    It is a strategy, an installed agent program, or a file of one, `solver.py:play` or `agent.sh`, which becomes its
    name `solver@HASH`. This process and its children then know the file.
    """
    name, _, path = text.partition(":")
    if name == "few-shot" and path:
        return GivenName.of(name, name), {"examples": _examples(path)}
    if name.endswith(AGENT_FILE_ENDINGS) or "/" in name:
        return GivenName.of(_name_of_file(text, "add_agent_file"), text), {}
    if name == "few-shot" or path or not NAME.fullmatch(name.replace("@", "")):
        raise argparse.ArgumentTypeError(
            f"expected {', '.join(AGENTS[:-1])}, few-shot:FILE, an installed agent or a file like solver.py:play, not"
            f" {text!r}"
        )
    return GivenName.of(name, name), {}


def _examples(path: str) -> list[str]:
    """The examples of a file. A line is a JSON string, or an object with tau-bench's `messages_display`."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError, RecursionError) as e:
        raise argparse.ArgumentTypeError(f"{path}: {e}") from e
    texts = [line.get("messages_display") if isinstance(line, dict) else line for line in lines]
    examples = [text for text in texts if isinstance(text, str) and text.strip()]
    if not examples or len(examples) < len(texts):
        raise argparse.ArgumentTypeError(f'{path}: expected lines with a JSON string or {{"messages_display": text}}')
    return examples
