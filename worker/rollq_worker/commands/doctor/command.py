"""`rollq doctor`: checks a set-up before it costs GPU hours.

It checks what `rollq worker` would use with the same flags and environment variables. The exit code
is 1 when a check fails; a warning leaves it at 0.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollq.commands.connect import settings
from rollq.commands.flags import shared
from rollq.commands.flags.files import environment
from rollq.commands.flags.parser import Commands
from rollq.commands.flags.types import assignment, json_or_text
from rollq.pip_extras import needs

if TYPE_CHECKING:
    from rollq.servers.health import Finding

READY = "start workers: rollq worker, with the same --tokenizer, --template and addresses"


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Checks what a worker with the same flags and environment variables would use: "
        "tokenizer and chat template, Redis, the broker, engines, and environments. Exit code 1: "
        "something that a run needs does not work.",
    )
    shared.add_tokenizer(parser)
    shared.add_template(parser)
    parser.add_argument(
        "--template-kwargs",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument for the chat template, such as enable_thinking=false, as JSON or text; "
        "may be repeated",
    )
    shared.add_redis(parser)
    shared.add_broker(parser)
    shared.add_engines(parser)
    parser.add_argument(
        "--env",
        action="append",
        type=environment,
        default=[],
        metavar="NAME|FILE",
        help="check this environment only, and the template with its tools; may be repeated (all "
        "of this machine)",
    )
    shared.add_json(parser, "print one JSON object: verdict, next step, and the checks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    with needs("worker"):
        from rollq_worker.commands.doctor.checks import all_checks

        args.template_kwargs = {name: json_or_text(value) for name, value in args.template_kwargs}
        # What environments print is not JSON.
        with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
            findings = all_checks(args, settings(args))
    failed = [finding for finding in findings if finding.level == "fail"]
    if args.json:
        print(json.dumps(_as_json(findings, failed)))
    else:
        print("\n".join(_as_text(findings, failed)))
    return 1 if failed else 0


def _as_json(findings: "Sequence[Finding]", failed: "Sequence[Finding]") -> dict[str, Any]:
    checks = {}
    for finding in findings:
        fields = {"status": finding.level.value, "says": finding.says, "next": finding.remedy}
        checks[finding.name] = {**fields, **finding.details}
    return {
        "verdict": "bad" if failed else "good",
        "next": failed[0].remedy if failed else READY,
        "checks": checks,
    }


def _as_text(findings: "Sequence[Finding]", failed: "Sequence[Finding]") -> list[str]:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.level.value:<4} {finding.name}: {finding.says}")
        lines += [f"      {line}" for line in finding.lines]
        if finding.remedy:
            lines.append(f"      next: {finding.remedy}")
    verdict = "ready"
    if failed:
        verdict = f"not ready: {', '.join(finding.name for finding in failed)}"
    return [*lines, "", f"verdict: {verdict}", f"next: {failed[0].remedy if failed else READY}"]
