"""Connects a command to Redis, as its flags and the environment say, or fails quickly with one
clear line.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import redis

from rollq.client.client import Client
from rollq.errors import FailureClass, RollqError, SettingsError
from rollq.ledger.reader import LedgerReader, runs
from rollq.servers.connection import PATIENCE_S, connect
from rollq.servers.health import check_redis
from rollq.servers.refusal import no_answer, unreached
from rollq.servers.retry import CONNECTION_ERRORS, NoRedis, retry
from rollq.settings import Settings
from rollq.snapshot.holdups import other_runs
from rollq.urls import mask_url


def settings(args: argparse.Namespace) -> Settings:
    """Settings from the environment, overridden by the command's flags. Raises SettingsError."""
    base = Settings.from_env(getattr(args, "redis", None), getattr(args, "broker", None))
    fields = {
        "engines": "engine_urls",
        "tokenizer": "tokenizer",
        "template": "template",
        "concurrency": "concurrency",
        "processes": "processes",
        "queues": "queues",
    }
    values: dict[str, Any] = {}
    for flag, field in fields.items():
        value = getattr(args, flag, None)
        if value is not None:
            values[field] = tuple(value) if isinstance(value, list) else value
    return replace(base, **values)


def ping_redis(url: str) -> None:
    """Sends one PING, so that a command fails at once. A client would try for five seconds.

    Raises SettingsError for a wrong address, RollqError when Redis does not answer or refuses.
    """
    client = None
    try:
        client = connect(url, patience_s=0)
        client.ping()
    except NoRedis:  # its text has the remedy
        raise
    except redis.AuthenticationError as e:
        raise RollqError(f"Redis at {mask_url(url)} refuses this user or password: {e}") from e
    except redis.ResponseError as e:
        # Also PING is refused while the disk is full or a script runs. Each call of the command
        # says so itself.
        if not str(e).startswith(("MISCONF", "BUSY ")):
            raise RollqError(f"Redis at {mask_url(url)} refuses: {e}") from e
    except redis.RedisError as e:
        remedy = no_answer(e)
        if remedy:
            raise RollqError(f"Redis at {mask_url(url)}: {e}. {remedy}") from e
        raise RollqError(unreached(mask_url(url), e)) from e
    finally:
        if client is not None:
            client.close()


@contextlib.contextmanager
def explain_lost_redis(url: str) -> Iterator[None]:
    """Raises a RollqError with the remedy when Redis went away and the command has waited long
    enough.
    """
    try:
        yield
    except CONNECTION_ERRORS as e:
        raise RollqError(
            f"Redis at {mask_url(url)} went away and did not come back: {str(e).rstrip('.')}. Its "
            f"data on disk is not lost. {no_answer(e) or 'Start it again'}, then repeat the same "
            "line"
        ) from e


@contextlib.contextmanager
def open_client(
    args: argparse.Namespace,
    run: str,
    *,
    budgets: Mapping[FailureClass, int] | None = None,
    warn: bool = False,
    must_exist: bool = False,
) -> Iterator[Client]:
    """A client of the run, once Redis has answered. `warn` prints a warning when this Redis can
    lose data.

    With `must_exist`, raises SettingsError when the run does not exist.
    """
    addresses = settings(args)
    with open_redis(args) as connection:
        if warn:
            # waits for a Redis that is busy, as the command itself does
            retry(LedgerReader(connection, run).exists)
            warnings = check_redis(connection)
            if warnings:
                print(f"rollq: warning: {'; '.join(warnings)}", file=sys.stderr)
        if must_exist:
            check_run(connection, run, addresses.redis_url)
    with (
        explain_lost_redis(addresses.redis_url),
        Client(
            addresses.redis_url, run=run, broker_url=addresses.broker_url, budgets=budgets
        ) as client,
    ):
        yield client


@contextlib.contextmanager
def open_run(
    args: argparse.Namespace, run: str, *, must_exist: bool = True
) -> Iterator[LedgerReader]:
    """A reader of the run. With `must_exist`, raises SettingsError when the run does not exist."""
    with open_redis(args) as connection:
        if must_exist:
            check_run(connection, run, settings(args).redis_url)
        yield LedgerReader(connection, run)


def check_run(connection: "redis.Redis", run: str, url: str) -> None:
    """Raises SettingsError, with the runs that exist, when this one does not."""
    if LedgerReader(connection, run).exists():
        return
    names = runs(connection)
    if run not in names:
        raise SettingsError(f"no run {run!r} at {mask_url(url)}; {other_runs(run, names)}")


@contextlib.contextmanager
def open_redis(
    args: argparse.Namespace, *, patience_s: float = PATIENCE_S
) -> Iterator["redis.Redis"]:
    """A connection to Redis, which has answered once. With its patience, it outlasts
    short outages.
    """
    url = settings(args).redis_url
    ping_redis(url)
    connection = connect(url, patience_s=patience_s)
    try:
        with explain_lost_redis(url):
            yield connection
    finally:
        connection.close()
