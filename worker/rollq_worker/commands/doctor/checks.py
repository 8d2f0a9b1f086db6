"""All checks of `rollq doctor`, in turn, each under its time limit. What a check needs is checked
before it.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial

from rollq.commands.connect import ping_redis
from rollq.errors import RollqError
from rollq.servers.health import Finding, Level
from rollq.servers.refusal import no_answer
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.commands.doctor import broker, engines, environments, redis_server, user_models
from rollq_worker.commands.doctor.limited import Limited
from rollq_worker.commands.doctor.tokenizer import check_tokenizer
from rollq_worker.tokens.tokenizer import Tokenizer

REDIS_S = 20.0
ENVIRONMENT_S = 120.0
AWAY = "not checked: Redis does not answer"


def all_checks(args: argparse.Namespace, settings: Settings) -> list[Finding]:
    """What a worker with these settings would meet, from its tokenizer to the users that
    it asks.
    """
    tokenizer, checked = _tokenizer(args, settings)
    checked += _redis(args, settings, tokenizer)
    checked += _engines(args, settings, tokenizer)
    checked += _environments(args.env)
    checked += _users(settings)
    return checked


def named(given: object, variable: str) -> bool:
    """Whether a flag or a variable names what the default would name else."""
    return bool(given) or any(
        os.environ.get(name, "").strip() for name in (variable, f"{variable}_FILE")
    )


def _tokenizer(
    args: argparse.Namespace, settings: Settings
) -> tuple[Tokenizer | None, list[Finding]]:
    loaded: list[Tokenizer | None] = [None]

    def check() -> list[Finding]:
        tools = next(filter(None, map(environments.tools_of, [*args.env, "shop"])), ())
        loaded[0], checked = check_tokenizer(
            settings.tokenizer, settings.template, args.template_kwargs, tools
        )
        return [checked]

    remedy = "give --tokenizer the directory of a model's tokenizer"
    # A hub may send the tokenizer first.
    checked = list(Limited("tokenizer", check, 120.0, remedy).findings())
    return loaded[0], checked


def _redis(
    args: argparse.Namespace, settings: Settings, tokenizer: Tokenizer | None
) -> list[Finding]:
    """Redis, the broker and the workers that Redis tells of."""
    if not named(args.redis, "ROLLQ_REDIS_URL"):
        try:
            ping_redis(settings.redis_url)
        except RollqError as e:
            if remedy := no_answer(e.__cause__):
                return [Finding("redis", Level.FAIL, str(e), remedy)]
            says = (
                "not checked: none is named, and none is at the default address "
                f"{mask_url(settings.redis_url)}"
            )
            return [Finding("redis", Level.WARN, says, redis_server.START)]
    check = partial(redis_server.check_redis, settings)
    checked = list(Limited("redis", check, REDIS_S, redis_server.START).findings())
    answers = any(finding.name == "redis latency" for finding in checked)
    if not answers and settings.broker_url == settings.redis_url:
        return [
            *checked,
            *(Finding(name, Level.WARN, AWAY, "see redis") for name in ("broker", "workers")),
        ]
    reach = "start it, or correct ROLLQ_BROKER_URL (--broker)"
    checked += Limited("broker", partial(broker.check, settings), 20.0, reach).findings()
    if not answers:
        return [*checked, Finding("workers", Level.WARN, AWAY, "see redis")]
    check = partial(redis_server.check_workers, settings, tokenizer)
    return [*checked, *Limited("workers", check, REDIS_S, "see redis").findings()]


def _engines(
    args: argparse.Namespace, settings: Settings, tokenizer: Tokenizer | None
) -> list[Finding]:
    """All engines at once, because one that hangs answers late."""
    urls: list[str] = []

    def listed() -> list[Finding]:
        here, problems = engines.addresses(settings)
        urls.extend(here)
        return problems

    checked = list(Limited("engine list", listed, REDIS_S, engines.CORRECT).findings())
    chosen = named(args.engines, "ROLLQ_ENGINE_URL")
    names = [f"engine {number}" if urls[1:] else "engine" for number in range(1, len(urls) + 1)]
    running = [
        # An engine may take 20 s for the first token, and is then asked for some more.
        Limited(
            name, partial(engines.check, url, tokenizer, name, named=chosen), 90.0, engines.START
        )
        for name, url in zip(names, urls, strict=True)
    ]
    for check in running:
        checked += check.findings()
    old = Limited("weights", partial(engines.too_old, settings, checked), REDIS_S, "see redis")
    return [*checked, *engines.versions_differ(checked), *old.findings()]


def _environments(asked: Sequence[str]) -> list[Finding]:
    names: list[str] = []

    def findings() -> list[Finding]:
        here, absent = environments.played_here(asked)
        names.extend(here)
        says = (
            f"{', '.join(here)}; not installed: {', '.join(absent)}" if absent else ", ".join(here)
        )
        return [] if asked else [Finding("environments", Level.OK, says)]

    remedy = environments.INSTALL
    checked = list(Limited("environments", findings, ENVIRONMENT_S, remedy).findings())
    for name in names:
        checked += Limited(
            f"environment {name}", partial(environments.check, name), ENVIRONMENT_S, remedy
        ).findings()
    return checked


def _users(settings: Settings) -> list[Finding]:
    if not settings.user_endpoints:
        says = "none is named in ROLLQ_USER_ENDPOINTS; scripted users and oracles need none"
        return [Finding("user model", Level.OK, says)]
    running = [
        Limited(
            f"user model {name}",
            partial(user_models.check, name, endpoint),
            30.0,
            user_models.ADDRESS,
        )
        for name, endpoint in settings.user_endpoints.items()
    ]
    return [finding for check in running for finding in check.findings()]
