"""Command line arguments that several commands share. Every error is one line that says what is expected."""

import argparse
import contextlib
import math
import sys
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollq.job import NAME
from rollq.urls import mask_url

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


MOST = 2**53 - 1
"""The ledger counts in doubles."""


def whole(least: int) -> Callable[[str], int]:
    """An argument type: a whole number of at least that much."""

    def parse(text: str) -> int:
        limit = ""
        with contextlib.suppress(ValueError):
            if least <= (value := int(text)) <= MOST:
                return value
            limit = _limit(value, MOST)
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}{limit}, not {text!r}")

    return parse


def _limit(value: float, most: float) -> str:
    """The upper bound in words, where it matters: nobody wants to read it otherwise."""
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


def tasks(text: str) -> range:
    """`A-B`, both included, or a single task."""
    first, dash, last = text.partition("-")
    limit = ""
    with contextlib.suppress(ValueError):
        low, high = int(first), int(last if dash else first)
        if 0 <= low <= high <= MOST and first.strip().isdecimal():
            return range(low, high + 1)
        limit = _limit(max(low, high), MOST)
    raise argparse.ArgumentTypeError(
        f"expected A-B with A not above B{limit}, both included, or one task, not {text!r}"
    )


def name(text: str) -> str:
    """The name of a run or a group."""
    if NAME.fullmatch(text):
        return text
    raise argparse.ArgumentTypeError(
        f"expected a name (up to 100 letters, digits, '.', '_', '-'; first a letter or digit), not {text!r}"
    )


def http_url(text: str) -> str:
    """The address of an HTTP server."""
    with contextlib.suppress(ValueError):
        url = urllib.parse.urlsplit(text)
        if url.scheme in ("http", "https") and url.hostname and url.port != 0:
            return text.rstrip("/")
    raise argparse.ArgumentTypeError(f"expected an address like http://127.0.0.1:30000, not {mask_url(text)!r}")


def add_redis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redis", metavar="URL", help="the ledger's Redis (ROLLQ_REDIS_URL, else redis://127.0.0.1:6379/0)"
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--broker", metavar="URL", help="Celery's broker, if not the ledger's Redis (ROLLQ_BROKER_URL)")


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="directory with tokenizer.json, tokenizer_config.json and a chat template, or a hub name"
        " (ROLLQ_TOKENIZER; without one, the small tokenizer that rollq ships)",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)
