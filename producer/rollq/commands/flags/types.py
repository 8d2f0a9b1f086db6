"""Types of the values of flags. An error says in one line what is expected."""

import argparse
import contextlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import TypeVar

from rollq.errors import ContractError, SettingsError
from rollq.job import NAME, Json
from rollq.numbers import LARGEST_NUMBER, is_whole, whole_kind
from rollq.settings import engine_address
from rollq.trajectory_extras import ExpertShape
from rollq.urls import is_http, mask_url

E = TypeVar("E", bound=StrEnum)


def integer(at_least: int, at_most: int = LARGEST_NUMBER) -> Callable[[str], int]:
    """An argument type: a whole number within these bounds."""

    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            value = int(text)
            if is_whole(value, at_least, at_most):
                return value
        kind = whole_kind(at_least, at_most)
        raise argparse.ArgumentTypeError(f"expected {kind}, not {text!r}")

    return parse


def listen_address(text: str) -> tuple[str, int]:
    """An argument type: `HOST:PORT`, also `[::1]:PORT`, or a port of this machine's loopback."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or "127.0.0.1", integer(0, 65535)(port)


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """An argument type: a finite number in [least, most]."""
    bounds = f"of at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = float(text)
            if math.isfinite(value) and least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(f"expected a number {bounds}, not {text!r}")

    return parse


def one_of(kind: type[E]) -> Callable[[str], E]:
    """An argument type: a value of the enumeration."""

    def parse(text: str) -> E:
        with contextlib.suppress(ValueError):
            return kind(text)
        raise argparse.ArgumentTypeError(f"expected {' or '.join(kind)}, not {text!r}")

    return parse


def words(kind: type[StrEnum]) -> str:
    """Placeholder of such a value in help."""
    return f"{{{','.join(kind)}}}"


def tasks(text: str) -> range:
    """An argument type: `A-B`, both ends included, or a single task."""
    first, dash, last = text.partition("-")
    with contextlib.suppress(ValueError):
        low, high = int(first), int(last if dash else first)
        if 0 <= low <= high <= LARGEST_NUMBER and first.strip().isdecimal():
            return range(low, high + 1)
    raise argparse.ArgumentTypeError(
        f"expected A-B with A not above B, both included, or one task, not {text!r}"
    )


def name(text: str) -> str:
    """An argument type: the name of a run or a group."""
    if NAME.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(
        "expected a name (up to 100 letters, digits, '.', '_', '-'; first a letter or digit), not "
        f"{text!r}"
    )


def http_url(text: str) -> str:
    """An argument type: the address of an HTTP server."""
    if is_http(text):
        return text.rstrip("/")
    raise argparse.ArgumentTypeError(
        f"expected an address like http://127.0.0.1:30000, not {mask_url(text)!r}"
    )


def engine_source(text: str) -> str:
    """An argument type: the address of an engine, or of a list of engines."""
    try:
        return engine_address(text)
    except SettingsError as e:
        raise argparse.ArgumentTypeError(str(e).partition(": ")[2]) from None


def json_or_text(text: str) -> Json:
    """The value that a text is as JSON; the text itself when it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def assignment(text: str) -> tuple[str, str]:
    """An argument type: `KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if key and equals:
        return key, value
    raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")


def expert_shape(text: str) -> dict[str, int]:
    """An argument type: the shape of a model's routing, as 48x8x128."""
    try:
        layers, top_k, experts = map(int, text.split("x"))
        return asdict(ExpertShape.read({"layers": layers, "top_k": top_k, "experts": experts}))
    except ContractError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    except ValueError as e:
        raise argparse.ArgumentTypeError(
            f"expected LAYERSxTOP_KxEXPERTS, as in 48x8x128, not {text!r}"
        ) from e
