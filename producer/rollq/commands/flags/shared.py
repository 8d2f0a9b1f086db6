"""Flags that several commands share."""

import argparse
from pathlib import Path

from rollq.commands.flags.types import engine_source, name, number, one_of, words
from rollq.job import Purpose


def add_engines(parser: argparse.ArgumentParser) -> None:
    """`--engine`, as often as there are engines."""
    parser.add_argument(
        "--engine",
        dest="engines",
        action="append",
        type=engine_source,
        metavar="URL",
        help="SGLang or vLLM server; repeat the flag for several. file:PATH and redis:NAME are "
        "lists of engines that may change (ROLLQ_ENGINE_URL, else http://127.0.0.1:30000)",
    )


def add_run(
    parser: argparse.ArgumentParser, *, required: bool = True, help: str = "name of the run"
) -> None:
    parser.add_argument(
        "--run", dest="run_name", type=name, required=required, metavar="RUN", help=help
    )


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=number(0),
        metavar="S",
        help="give up after this many seconds, with exit code 1 (never)",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="append the trajectories to this file of JSON Lines, each job once",
    )


def add_purpose(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument(
        "--purpose", type=one_of(Purpose), default=Purpose.TRAIN, metavar=words(Purpose), help=help
    )


def add_redis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="address of the run's Redis (ROLLQ_REDIS_URL, else redis://127.0.0.1:6379/0)",
    )


def add_broker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help="address of Celery's broker (ROLLQ_BROKER_URL, else --redis)",
    )


def add_tokenizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        metavar="DIR",
        help="directory with tokenizer.json, tokenizer_config.json and a chat template, or a name "
        "on a hub (ROLLQ_TOKENIZER, else the small tokenizer that rollq ships)",
    )


def add_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--template",
        metavar="NAME",
        help="chat template in place of the tokenizer's own: the name of a training template "
        "(`rollq doctor` names the one that fits), or a file (ROLLQ_TEMPLATE)",
    )


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)
