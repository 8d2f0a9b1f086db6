"""Environments and agents on a command line: names, or files that become names."""

import argparse
import json
import os
from collections.abc import Mapping

from rollq.errors import RollqError
from rollq.job import NAME, Json, is_path
from rollq.pip_extras import install_line
from rollq.worker_package import for_clients

_TYPED: dict[str, str] = {}
"""Files by the name of the environment or agent that each became in this process."""


def typed(name: str) -> str:
    """The text that the user typed for this name of an environment or an agent."""
    return _TYPED.get(name, name)


def environment(text: str) -> str:
    """An argument type: an environment's name, or a file `game.py:load` or `maths.jsonl`, or a
    folder `harbor:DIR`, which becomes its name `game@HASH`.

    This process and its children then know the file.
    """
    if is_path(text):
        return _name_of_file(text, "add_environment_file")
    if os.path.isfile(text.partition(":")[0]):  # False for what is too long for a file's name
        raise argparse.ArgumentTypeError(
            f"expected a file that ends in .py, .jsonl or .parquet, not {text!r}"
        )
    return text


def _name_of_file(text: str, add: str) -> str:
    try:
        name = str(getattr(for_clients(), add)(text))
    except RollqError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    except ImportError as e:
        remedy = install_line("worker")
        raise argparse.ArgumentTypeError(
            f"the file {text!r} needs the worker's packages: {remedy}"
        ) from e
    _TYPED[name] = text
    return name


def agent(text: str) -> str:
    """An argument type: an agent strategy, an installed agent program, or a file of one,
    `solver.py:play` or `agent.sh`, which becomes its name `solver@HASH`; `few-shot:FILE` has
    examples in a file.

    This process and its children then know the file.
    """
    name, _, path = text.partition(":")
    if name == "few-shot" and path:
        return name
    if name.endswith((".py", ".sh")) or "/" in name:
        return _name_of_file(text, "add_agent_file")
    if name == "few-shot" or path or not NAME.fullmatch(name.replace("@", "")):
        raise argparse.ArgumentTypeError(
            "expected tool-calling, act, react, few-shot:FILE, an installed agent or a file like "
            f"solver.py:play, not {text!r}"
        )
    return name


def agent_options(text: str) -> Mapping[str, Json]:
    """Options that such a text brings with it: the examples of `few-shot:FILE`."""
    name, _, path = text.partition(":")
    return {"examples": _examples(path)} if name == "few-shot" and path else {}


def _examples(path: str) -> list[str]:
    """The examples of a file. A line is a JSON string, or an object with tau-bench's
    `messages_display`.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
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
