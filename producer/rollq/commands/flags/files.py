"""Environments and agents on a command line: names, or files that become names."""

import argparse
import json
from collections.abc import Mapping

from rollq.errors import RollqError
from rollq.job import NAME, Json, is_path
from rollq.pip_extras import install_line
from rollq.worker_package import for_clients


class GivenName(str):
    """The name of an environment or an agent."""

    given: str
    """What the user wrote: the name, or a file."""
    args: Mapping[str, Json]
    """The options of an agent that come with the name: the examples of a file."""

    @classmethod
    def of(cls, name: str, given: str, args: Mapping[str, Json] | None = None) -> "GivenName":
        made = cls(name)
        made.given, made.args = given, args or {}
        return made


def given_name(name: str) -> str:
    """What the user wrote for this name of an environment or an agent."""
    return name.given if isinstance(name, GivenName) else name


def environment(text: str) -> GivenName:
    """An argument type: an environment's name, or a file `game.py:load` or `maths.jsonl`, or a
    folder `harbor:DIR`, which becomes its name `game@HASH`.

    This process and its children then know the file.
    """
    return GivenName.of(
        _name_of_file(text, "add_environment_file") if is_path(text) else text, text
    )


def _name_of_file(text: str, add: str) -> str:
    try:
        return str(getattr(for_clients(), add)(text))
    except RollqError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    except ImportError as e:
        remedy = install_line("worker")
        raise argparse.ArgumentTypeError(
            f"the file {text!r} needs the worker's packages: {remedy}"
        ) from e


def agent(text: str) -> GivenName:
    """An argument type: an agent strategy, an installed agent program, or a file of one,
    `solver.py:play` or `agent.sh`, which becomes its name `solver@HASH`; `few-shot:FILE` brings
    examples.

    This process and its children then know the file.
    """
    name, _, path = text.partition(":")
    if name == "few-shot" and path:
        return GivenName.of(name, name, {"examples": _examples(path)})
    if name.endswith((".py", ".sh")) or "/" in name:
        return GivenName.of(_name_of_file(text, "add_agent_file"), text)
    if name == "few-shot" or path or not NAME.fullmatch(name.replace("@", "")):
        raise argparse.ArgumentTypeError(
            "expected tool-calling, act, react, few-shot:FILE, an installed agent or a "
            "file like solver.py:play, not"
            f" {text!r}"
        )
    return GivenName.of(name, name)


def _examples(path: str) -> list[str]:
    """The examples of a file. A line is a JSON string, or an object with tau-bench's
    `messages_display`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError, RecursionError) as e:
        raise argparse.ArgumentTypeError(f"{path}: {e}") from e
    texts = [line.get("messages_display") if isinstance(line, dict) else line for line in lines]
    examples = [text for text in texts if isinstance(text, str) and text.strip()]
    if not examples or len(examples) < len(texts):
        raise argparse.ArgumentTypeError(
            f'{path}: expected lines with a JSON string or {{"messages_display": text}}'
        )
    return examples
