"""What a worker checks before it starts.

Each error is one line that says what is wrong and what to do about it. An engine that is not ready gets only a warning,
because it may be ready later; one that is ready is asked for a token. It knows nothing of Celery.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

from rollq.errors import JobFailure, LedgerError, RollqError, SettingsError, Unwritable
from rollq.ledger.ledger import Ledger
from rollq.servers.connection import check_redis
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.engine.generate import OtherServer
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.environments import names
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer

log = logging.getLogger("rollq.worker")

UNKNOWN_RUN = "rollq-start"
"""A run that does not exist, so asking for one of its jobs changes nothing."""


def check(settings: Settings, connection: Any) -> None:
    """Check everything. Raises SettingsError or RollqError; logs a warning for what works but is unwise."""
    _check_isolated(settings.isolate)
    if settings.alive_file is not None:
        try:
            settings.alive_file.touch()
        except OSError as e:
            raise SettingsError(f"ROLLQ_ALIVE_FILE: {settings.alive_file} cannot be touched: {e.strerror}") from e
    for warning in check_redis(connection):
        log.warning("%s", warning)
    _check_permissions(connection, settings.redis_url)


def stop_ids(tokenizer: Tokenizer) -> Sequence[int]:
    """The tokens that end a turn in the chat template. Raises SettingsError for a template that cannot be used."""
    try:
        return ChatRenderer(tokenizer).stop_ids
    except JobFailure as e:
        raise SettingsError(f"ROLLQ_TOKENIZER: {e}") from e


def check_engines(engines: Sequence[SGLangEngine], tokenizer: str) -> None:
    """Warn of engines that take no requests yet.

    Raises SettingsError when one is ready and has other token ids, or is no SGLang server.
    """
    with ThreadPoolExecutor(max(1, len(engines))) as pool:  # at once, because one that hangs answers late
        ready = list(pool.map(_check_engine, engines, repeat(tokenizer)))
    away = [engine for engine, is_ready in zip(engines, ready, strict=True) if not is_ready]
    then = "nothing is claimed before there is one" if len(away) == len(engines) else "the others are used meanwhile"
    for engine in away:
        log.warning("no engine at %s: %s (`rollq engine`, --engine URL)", engine.name, then)
    if not engines:
        log.warning("no engine is listed: %s", then)


def _check_engine(engine: SGLangEngine, tokenizer: str) -> bool:
    """Whether it takes requests. Raises SettingsError."""
    if not engine.ready():
        if engine.tokenizer_differs():
            raise SettingsError(
                f"the tokenizer of the engine at {engine.name} gives other ids than {tokenizer}: give"
                " --tokenizer (ROLLQ_TOKENIZER) the directory or the hub name of the model that it serves"
            )
        return False
    try:
        why = engine.probe()
    except OtherServer as e:
        raise SettingsError(f"the server at {engine.name} is not an SGLang server: {e}") from e
    if why:
        log.warning("the engine at %s is ready, but generated nothing: %s", engine.name, why)
    return True


def _check_isolated(patterns: Sequence[str]) -> None:
    known = names()
    for name in patterns:
        if "*" not in name and name not in known and name.partition(":")[0] not in known:
            raise SettingsError(f"ROLLQ_ISOLATE: there is no environment {name!r}; there are {', '.join(known)}")


def _check_permissions(connection: Any, url: str) -> None:
    """Run a script that changes nothing, to see whether this user of Redis may."""
    try:
        Ledger(connection, UNKNOWN_RUN).republish(f"{UNKNOWN_RUN}/x/0")
    except Unwritable as e:
        log.warning("%s. Nothing is claimed until it takes writes", e)
    except LedgerError as e:
        raise RollqError(
            f"Redis at {mask_url(url)} refuses what rollq needs: {e} (its user must be allowed the keys rollq* and"
            " _kombu.*, all channels, and all commands but the administrative ones; docs/deploy.md)"
        ) from e
