"""`rollq doctor`: checks what a run needs before it costs GPU hours.

It checks what `rollq worker` would use with the same flags and environment variables. Every check
says what it found and what to do next. The exit code is 1 when one fails; a warning leaves it at 0.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollq.commands.connect import settings
from rollq.commands.flags.files import environment
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.shared import (
    add_broker,
    add_engines,
    add_json,
    add_redis,
    add_template,
    add_tokenizer,
)
from rollq.commands.flags.types import assignment, json_or_text
from rollq.pip_extras import needs

if TYPE_CHECKING:
    from rollq.servers.health import Finding

READY = "start workers: rollq worker, with the same --tokenizer, --template and addresses"


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Checks what a worker with the same flags and environment variables would use: "
        "tokenizer and chat"
        " template, Redis, the broker, live workers, engines, environments, and models "
        "that play users. Exit code 1:"
        " something that a run needs does not work.",
    )
    add_tokenizer(parser)
    add_template(parser)
    parser.add_argument(
        "--template-kwargs",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument for the chat template, such as enable_thinking=false, as JSON or "
        "text; may be repeated",
    )
    add_redis(parser)
    add_broker(parser)
    add_engines(parser)
    parser.add_argument(
        "--env",
        action="append",
        type=environment,
        default=[],
        metavar="NAME|FILE",
        help="check this environment only, and the template with its tools; may be repeated "
        "(all of this machine)",
    )
    add_json(
        parser, "print one JSON object: the verdict, the next step, and each check with its details"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = settings(args)
    args.template_kwargs = {name: json_or_text(value) for name, value in args.template_kwargs}
    with needs("worker"):
        from rollq_worker.commands.doctor.checks import all_checks

        # What environments print is no JSON.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            checked = all_checks(args, found)
    print(
        json.dumps(as_json(checked), ensure_ascii=False)
        if args.json
        else "\n".join(as_text(checked))
    )
    return 1 if _failed(checked) else 0


def as_json(checked: "Sequence[Finding]") -> dict[str, Any]:
    failed = _failed(checked)
    return {
        "verdict": "bad" if failed else "good",
        "next": failed[0].remedy if failed else READY,
        "checks": {
            one.name: {
                "status": one.level.value,
                "says": one.says,
                "next": one.remedy,
                **one.details,
            }
            for one in checked
        },
    }


def as_text(checked: "Sequence[Finding]") -> list[str]:
    lines: list[str] = []
    for one in checked:
        lines.append(f"{one.level.value:<4} {one.name}: {one.says}")
        lines += [f"      {line}" for line in one.lines]
        if one.remedy:
            lines.append(f"      next: {one.remedy}")
    failed, warned = _failed(checked), sum(one.level.value == "warn" for one in checked)
    warnings = f", with {warned} warning{'s' if warned > 1 else ''}" if warned else ""
    verdict = (
        f"not ready: {', '.join(one.name for one in failed)}" if failed else f"ready{warnings}"
    )
    return [*lines, "", f"verdict: {verdict}", f"next: {failed[0].remedy if failed else READY}"]


def _failed(checked: "Sequence[Finding]") -> "list[Finding]":
    return [one for one in checked if one.level.value == "fail"]
