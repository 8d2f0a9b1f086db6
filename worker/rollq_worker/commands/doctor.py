"""`rollq doctor`: checks what a run needs before it costs GPU hours.

It always checks the tokenizer and its chat template; Redis, the engine and an environment when a flag or an environment
variable names them. Every check says what it found and what to do next. The exit code is 1 when one fails.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollq.commands.connect import ping_redis, settings
from rollq.commands.flags.shared import (
    Commands,
    add_engines,
    add_json,
    add_redis,
    add_template,
    add_template_kwargs,
    add_tokenizer,
)
from rollq.errors import RollqError
from rollq.extras import needs
from rollq.servers import connection, health
from rollq.servers.connection import connect
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.commands.environment_names import load_domain
from rollq_worker.commands.tokenizer_check import Check, check_tokenizer

if TYPE_CHECKING:
    from rollq_worker.tokens.tokenizer import Tokenizer

READY = "start workers: rollq worker, with the same --tokenizer, --template and addresses"
_STRING = {"type": "string", "description": "Which one."}
SAMPLE_TOOLS: Sequence[Mapping[str, Any]] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of the shop.",
            "parameters": {"type": "object", "properties": {"order_id": _STRING}, "required": ["order_id"]},
        },
    }
    for name in ("find_order", "cancel_order")
)
"""The tools for the self-check when no environment is named."""


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Checks a tokenizer and its chat template over every edge of an episode, and Redis, engine and"
        " environment when they are named. Exit code 1: something that every episode needs does not work.",
    )
    add_tokenizer(parser)
    add_template(parser)
    add_template_kwargs(parser)
    add_redis(parser)
    add_engines(parser)
    parser.add_argument("--env", metavar="NAME", help="environment whose tools the template is tried on (e.g. shop)")
    add_json(parser, "print one JSON object: the verdict, the next step, and each check with its details")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    found = settings(args)
    with needs("worker"):
        checks = _checks(args, found)
    print(json.dumps(as_json(checks), ensure_ascii=False) if args.json else "\n".join(as_text(checks)))
    return 0 if all(check.ok for check in checks) else 1


def _checks(args: argparse.Namespace, found: Settings) -> list[Check]:
    checks: list[Check] = []
    tools = SAMPLE_TOOLS
    if args.env:
        environment, tools = check_environment(args.env)
        checks.append(environment)
    tokenizer, read = check_tokenizer(found.tokenizer, found.template, args.template_kwargs, tools)
    checks.append(read)
    if args.redis or os.environ.get("ROLLQ_REDIS_URL") or os.environ.get("ROLLQ_REDIS_URL_FILE"):
        checks.append(check_redis(found))
    if args.engines or os.environ.get("ROLLQ_ENGINE_URL"):
        checks += check_engines(found, tokenizer)
    return checks


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    bad = [check for check in checks if not check.ok]
    return {
        "verdict": "bad" if bad else "good",
        "next": bad[0].next if bad else READY,
        "checks": {
            check.name: {"ok": check.ok, "says": check.says, "next": check.next, **check.details} for check in checks
        },
    }


def as_text(checks: Sequence[Check]) -> list[str]:
    lines: list[str] = []
    for check in checks:
        lines.append(f"{'ok ' if check.ok else 'BAD'} {check.name}: {check.says}")
        lines += [f"      {line}" for line in check.lines]
    bad = [check for check in checks if not check.ok]
    lines += ["", "verdict: " + (f"not ready: {', '.join(check.name for check in bad)}" if bad else "ready")]
    return lines + [f"next: {step}" for step in ([check.next for check in bad] or [READY])]


def check_environment(name: str) -> tuple[Check, Sequence[Mapping[str, Any]]]:
    """Open the first task of an environment. Returns its tools too, for the self-check."""
    try:
        found = load_domain(name, "worker")
        split = next(iter(found.splits()))
        tools = list(found.open(split, 0, {}).tools)
    except RollqError as e:
        return Check("environment", False, str(e), "check the name, and that its package is installed"), SAMPLE_TOOLS
    details = {"environment": name, "version": found.version, "tools": len(tools)}
    return Check("environment", True, f"{name} ({found.version}): {len(tools)} tools", "", (), details), tools


def check_redis(found: Settings) -> Check:
    """Check that Redis answers and is configured to lose no data."""
    url = mask_url(found.redis_url)
    try:
        ping_redis(found.redis_url)
        client = connect(found.redis_url)
        try:
            warnings = health.check_redis(client)
        finally:
            client.close()
    except RollqError as e:
        return Check("redis", False, str(e), "start one with `rollq redis`, or pass --redis URL")
    if warnings:
        step = "configure Redis with maxmemory-policy noeviction and appendonly yes"
        return Check("redis", False, f"{url}: {warnings[0]}", step, (), {"warnings": warnings})
    return Check("redis", True, f"{url} answers and keeps what it is given")


def check_engines(found: Settings, tokenizer: "Tokenizer | None") -> list[Check]:
    """Check every engine, also those in a file or in Redis."""
    from rollq.ledger.workers.engine_addresses import read_list

    checks: list[Check] = []
    for source in found.engine_urls:
        urls: Sequence[str] = (source,)
        if not source.startswith("http"):
            client = connect(found.redis_url, retries=0)
            try:
                urls = read_list(source, client)
            except (RollqError, *connection.CONNECTION_ERRORS) as e:
                checks.append(Check("engine", False, f"{source}: {e}", "correct the list, or pass --engine URL"))
                continue
            finally:
                client.close()
            if not urls:
                checks.append(Check("engine", False, f"{source} lists no engine", "add one to the list"))
        checks += [check_engine(url, tokenizer) for url in urls]
    if len(checks) > 1:
        checks = [replace(check, name=f"engine {number}") for number, check in enumerate(checks, 1)]
    return checks


def check_engine(url: str, tokenizer: "Tokenizer | None") -> Check:
    """Check that the engine answers as SGLang does, and that its tokenizer gives the same ids as ours."""
    from rollq_worker.engine.control import EngineControl
    from rollq_worker.engine.generate import OtherServer, probe
    from rollq_worker.engine.http import EngineHttp
    from rollq_worker.engine.limits import TEST_TEXT, same_ids
    from rollq_worker.http_client import NoResponse

    masked, http = mask_url(url), EngineHttp(url, threads=1)
    control, ours = EngineControl(http), tokenizer.encode(TEST_TEXT) if tokenizer else ()
    try:
        model = control.get_json("/model_info")
    except NoResponse as e:
        return Check("engine", False, f"no engine at {masked}: {e}", "start an engine, or pass --engine URL")
    same = None
    with suppress(NoResponse):
        same = same_ids(control.tokenize(TEST_TEXT), ours) if ours else None
    path = model.get("model_path") if isinstance(model, dict) else None
    serves = f"{masked} serves {path or 'a model that it does not name'}"
    details: dict[str, Any] = {"model": path, "ids": {None: "unknown", True: "same", False: "different"}[same]}
    if not ours:
        return Check("engine", True, serves, "", (), details)
    if same is False:
        step = "give --tokenizer the directory that the engine serves"
        return Check("engine", False, f"{serves}, whose tokenizer gives other ids", step, (), details)
    try:
        why = probe(http, ours)
    except OtherServer as e:
        return Check("engine", False, f"{masked} is not an SGLang server: {e}", "pass --engine URL", (), details)
    if why:
        step = "continue the engine if it is paused; otherwise its log says why"
        return Check("engine", False, f"{serves}, but generated nothing: {why}", step, (), details)
    ids = "its tokenizer gives the same ids" if same else "it does not show its token ids"
    return Check("engine", True, f"{serves}; {ids}", "", (), details)
