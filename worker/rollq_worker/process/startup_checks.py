"""Checks of a worker before it starts.

Each error is one line with the fault and the remedy. An engine that is not ready gets only a
warning, because it may be ready later; one that is ready is asked for a token. It knows nothing of
Celery.
"""

import logging
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, NamedTuple

from rollq.errors import JobFailure, LedgerError, RollqError, SettingsError, Unwritable
from rollq.ledger.ledger import Ledger
from rollq.servers.health import check_redis
from rollq.settings import Settings
from rollq.urls import mask_url
from rollq_worker.agents.known_agents import load_functions
from rollq_worker.agents.programs.users import VARIABLE, agent_users
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.exchange.generate import OtherServer
from rollq_worker.environments import domain, names
from rollq_worker.environments.files import FILES as environment_files
from rollq_worker.process.attempts.isolation import Isolation
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.tokenizer import Tokenizer

log = logging.getLogger("rollq.worker")

UNKNOWN_RUN = "rollq-start"
"""A run that does not exist."""


def check(settings: Settings, connection: Any) -> None:
    """Checks everything. Raises SettingsError or RollqError; logs a warning for settings that work
    but are unwise.
    """
    _check_isolated(settings.isolate)
    _check_files(settings.isolate)
    users = agent_users()
    at_once = settings.concurrency * settings.processes
    if users and users.count < at_once:
        raise SettingsError(
            f"{VARIABLE} has {users.count} users for {at_once} episodes at once "
            "(ROLLQ_CONCURRENCY, in each of ROLLQ_PROCESSES)"
        )
    if settings.alive_file is not None:
        try:
            settings.alive_file.touch()
        except OSError as e:
            raise SettingsError(
                f"ROLLQ_ALIVE_FILE: {settings.alive_file} cannot be touched: {e.strerror}"
            ) from e
    _check_open_files(settings.concurrency)
    for warning in check_redis(connection):
        log.warning("%s", warning)
    check_permissions(connection, settings.redis_url)


def stop_ids(tokenizer: Tokenizer) -> Sequence[int]:
    """The tokens that end a turn in the chat template. Raises SettingsError for a template that
    cannot be used.
    """
    try:
        return ChatRenderer(tokenizer).stop_ids
    except JobFailure as e:
        raise SettingsError(f"ROLLQ_TOKENIZER: {e}") from e


def check_engines(engines: Sequence[EngineClient], tokenizer: str, model: str = "") -> None:
    """Warn of engines that take no requests yet: of the policy, or of that other `model`.

    Raises SettingsError when one is ready and has other token ids, or is neither SGLang nor vLLM.
    """
    with ThreadPoolExecutor(max(1, len(engines))) as pool:
        # at once, because one that hangs answers late
        checks = pool.map(check_engine, engines, repeat(tokenizer), repeat(model))
        states = list(zip(engines, checks, strict=True))
    away = [(engine.name, state.why) for engine, state in states if not state.ready]
    of = f" of the model {model!r}" if model else ""
    remedy = "ROLLQ_MODEL_ENGINES" if model else "`rollq engine`, --engine URL"
    if model and len(away) == len(engines):
        then = "episodes that need it wait for it"
    elif len(away) == len(engines):
        then = "nothing is claimed before one is ready"
    else:
        then = "the others are used meanwhile"
    for name, why in away:
        log.warning("no engine%s is ready at %s (%s): %s (%s)", of, name, why, then, remedy)
    if not engines:
        log.warning("no engine%s is listed: %s", of, then)
    for engine, state in states:
        if state.ready and state.why:
            log.warning(
                "the engine at %s is ready, but generated nothing: %s", engine.name, state.why
            )


class EngineState(NamedTuple):
    """The result of a request to an engine for one token."""

    ready: bool
    """True if it takes requests."""
    why: str
    """Reason why it takes none, or generated nothing; empty when it generated."""


def check_engine(engine: EngineClient, tokenizer: str, model: str = "") -> EngineState:
    """Asks an engine of the policy, or of that other `model`, for a token with its logprob. A
    worker that starts does, and `rollq doctor`.

    Raises SettingsError when it has other token ids, or is neither SGLang nor vLLM.
    """
    why = engine.why_not_ready()
    if why:
        if engine.vocabulary.difference:  # it was asked; one that hangs would answer late again
            remedy = (
                f"the model {model!r} (ROLLQ_MODEL_ENGINES) must have the policy's vocabulary"
                if model
                else "give --tokenizer (ROLLQ_TOKENIZER) the directory or the hub name of the "
                "model that it serves"
            )
            raise SettingsError(
                f"the tokenizer of the engine at {engine.name} gives other ids than {tokenizer} "
                f"({engine.vocabulary.difference}): {remedy}"
            )
        return EngineState(False, why)
    try:
        return EngineState(True, engine.probe())
    except OtherServer as e:
        raise SettingsError(f"the server at {engine.name} is neither SGLang nor vLLM: {e}") from e


def _check_isolated(patterns: Sequence[str]) -> None:
    environments = names()
    for name in patterns:
        if "*" in name or {name, name.partition(":")[0]} & {*environments}:
            continue
        there_are = ", ".join(environments)
        raise SettingsError(
            f"ROLLQ_ISOLATE: there is no environment {name!r}; there are {there_are}"
        )


def _check_files(isolated: Sequence[str]) -> None:
    """Loads the files of environments and agents, but for what must stay out of this process."""
    apart = Isolation(isolated)
    try:
        for file in environment_files.readable():
            if not apart.applies(file.name):
                domain(file.name)
        load_functions()
    except RollqError as e:
        raise SettingsError(str(e)) from e


def _check_open_files(slots: int) -> None:
    """Each slot holds a connection while the engine generates; libraries, logs and Redis have
    files, too.
    """
    needed = slots + 64
    (allowed, most) = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed > allowed:
        raise SettingsError(
            f"ROLLQ_CONCURRENCY: {slots} slots (-c) need about {needed} open files, and this "
            f"process may open {allowed} (ulimit -n, at most {most} here): raise that limit, or "
            "give a smaller -c"
        )


def check_permissions(connection: Any, url: str) -> None:
    """Runs a script that changes nothing. Raises RollqError when the user may not."""
    try:
        Ledger(connection, UNKNOWN_RUN).resend(f"{UNKNOWN_RUN}/x/0")
    except Unwritable as e:
        log.warning("%s. Nothing is claimed until it takes writes", e)
    except LedgerError as e:
        raise RollqError(f"Redis at {mask_url(url)} refuses what rollq needs: {e}") from e
