"""Checks of `rollq doctor`: the parts that a worker's start checks, and environments."""

import argparse
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollq.commands.connect import ping_redis
from rollq.commands.weights import engine_addresses
from rollq.errors import RollqError, SettingsError
from rollq.servers import health
from rollq.servers.connection import connect
from rollq.servers.health import Finding, Level
from rollq.servers.refusal import no_answer
from rollq.settings import Settings
from rollq.snapshot.holdups import GO_ON
from rollq.urls import mask_url
from rollq_worker.commands.doctor.tokenizer import LOAD_TOKENIZER, check_tokenizer
from rollq_worker.commands.env.check import check_environment, choose_tasks
from rollq_worker.engine.client import EngineClient
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.environments import domain, names, origins
from rollq_worker.failures import FOREIGN_ERRORS
from rollq_worker.process.celery_app import bare_app, check_broker
from rollq_worker.process.startup_checks import check_engine, check_permissions
from rollq_worker.tokens.tokenizer import Tokenizer

Check = Callable[[], Sequence[Finding]]
ADDRESS = re.compile(r"[\w.+-]+://\S+")
"""An address in the words of an error."""
TASKS = 4
"""Tasks of an environment that are played, from all over its first split."""
ENVIRONMENT_S = 120.0
START_REDIS = "start one with `rollq redis`, or pass --redis URL (ROLLQ_REDIS_URL)"
CORRECT_REDIS = "correct the rights of its user, or what is said of a key"
START = "start it, wait until it is loaded, or "
CORRECT_MODELS = "correct ROLLQ_MODEL_ENGINES"


def all_checks(args: argparse.Namespace, settings: Settings) -> list[Finding]:
    """Runs all checks in turn, from the tokenizer to the environments."""
    tokenizer, findings = _tokenizer(args, settings)
    of_redis = _redis(args, settings)
    findings += of_redis
    if of_redis[0].level is Level.OK or settings.broker_url != settings.redis_url:
        remedy = "start it, or correct ROLLQ_BROKER_URL (--broker)"
        findings += Limited("broker", partial(_broker, settings), 20.0, remedy).findings()
    findings += _engines(args, tokenizer, settings.engine_urls)
    for model, sources in settings.model_engines.items():
        findings += _engines(args, tokenizer, sources, model)
    findings += _environments(args.env)
    return findings


def is_named(value: object, variable: str) -> bool:
    """True if a flag or a variable takes the place of the default."""
    return bool(value) or any(
        os.environ.get(name, "").strip() for name in (variable, f"{variable}_FILE")
    )


def _tokenizer(
    args: argparse.Namespace, settings: Settings
) -> tuple[Tokenizer | None, list[Finding]]:
    loaded: list[Tokenizer | None] = [None]

    def check() -> list[Finding]:
        tools = next(filter(None, map(_tools_of, [*args.env, "shop"])), ())
        loaded[0], finding = check_tokenizer(
            settings.tokenizer, settings.template, args.template_kwargs, tools
        )
        return [finding]

    # A hub may send the tokenizer first.
    findings = Limited("tokenizer", check, 120.0, LOAD_TOKENIZER).findings()
    return loaded[0], [*findings]


def _redis(args: argparse.Namespace, settings: Settings) -> list[Finding]:
    def check() -> list[Finding]:
        try:
            ping_redis(settings.redis_url)
        except RollqError as e:
            remedy = no_answer(e.__cause__)
            is_needed = remedy or is_named(args.redis, "ROLLQ_REDIS_URL")
            level = Level.FAIL if is_needed else Level.WARN
            return [Finding("redis", level, str(e), remedy or START_REDIS)]
        with connect(settings.redis_url, patience_s=0) as client:
            try:
                check_permissions(client, settings.redis_url)
            except RollqError as e:
                return [Finding("redis", Level.FAIL, str(e), CORRECT_REDIS)]
            answers = Finding("redis", Level.OK, f"{mask_url(settings.redis_url)} answers")
            return [answers, *health.findings(client)]

    return [*Limited("redis", check, 20.0, START_REDIS).findings()]


def _broker(settings: Settings) -> list[Finding]:
    check_broker(bare_app(settings))
    return [Finding("broker", Level.OK, f"{mask_url(settings.broker_url)} takes messages")]


def _engines(
    args: argparse.Namespace,
    tokenizer: Tokenizer | None,
    sources: Sequence[str],
    model: str = "",
) -> list[Finding]:
    """The policy's engines, or those of that other `model`. All at once, because one that hangs
    answers late.
    """
    urls: list[str] = []
    title = f"model {model}" if model else "engine"
    named = bool(model) or is_named(args.engines, "ROLLQ_ENGINE_URL")

    def read_lists() -> list[Finding]:
        urls.extend(engine_addresses(args, sources))
        return [] if urls else [Finding(f"{title} list", Level.FAIL, "no engine is listed", remedy)]

    remedy = CORRECT_MODELS if model else "correct the list, or pass --engine URL"
    findings = [*Limited(f"{title} list", read_lists, 20.0, remedy).findings()]
    running = []
    for number, url in enumerate(urls, 1):
        name = f"{title} {number}" if urls[1:] else title
        check = partial(check_one_engine, url, tokenizer, name, named, model)
        # An engine may take 20 s for the first token.
        running.append(Limited(name, check, 90.0, _start(model)))
    for limited in running:
        findings += limited.findings()
    return findings


def _start(model: str) -> str:
    return START + (CORRECT_MODELS if model else "pass --engine URL (ROLLQ_ENGINE_URL)")


def check_one_engine(
    url: str,
    tokenizer: Tokenizer | None,
    name: str = "engine",
    named: bool = True,
    model: str = "",
) -> list[Finding]:
    """Asks the engine for a token, as a worker's start does. One that is not `named` is the default
    and may be missing.
    """
    engine = EngineClient(url, proof=VocabularyProof(tokenizer) if tokenizer else None)
    try:
        state = check_engine(engine, tokenizer.name if tokenizer else "", model)
        if not state.ready:
            says = f"{engine.name} takes no requests: {state.why}"
            remedy = GO_ON if engine.paused else _start(model)
            return [Finding(name, Level.FAIL if named else Level.WARN, says, remedy)]
        served = engine.server.model()
    except SettingsError as e:
        remedy = "pass --engine URL of a server with this model, or --tokenizer of its model"
        return [Finding(name, Level.FAIL, str(e), CORRECT_MODELS if model else remedy)]
    finally:
        engine.close()
    serves = f"{engine.name} serves {served or 'a model that it does not name'}"
    if state.why:
        says = f"{serves}, but generated nothing: {state.why}"
        return [Finding(name, Level.FAIL, says, "its log says why")]
    says = f"{serves}; it samples tokens with logprobs, and has the tokenizer's ids"
    if engine.vocabulary.shows_ids:
        return [Finding(name, Level.OK, says)]
    says = f"{serves}; its token ids were not compared with a tokenizer's"
    return [Finding(name, Level.WARN, says, "compare the two models yourself")]


def _environments(names_or_files: Sequence[str]) -> list[Finding]:
    findings: list[Finding] = []
    for name in dict.fromkeys(names_or_files or names()):
        is_optional = not names_or_files and origins().get(name, "").startswith("rollq[")
        if is_optional and _tools_of(name) is None:
            continue  # its extra is not installed
        check = partial(_environment, name)
        title = f"environment {name}"
        remedy = "check the name, and that its package is installed; see `rollq env check NAME`"
        findings += Limited(title, check, ENVIRONMENT_S, remedy).findings()
    return findings


def _environment(name: str) -> list[Finding]:
    """Plays some tasks by their ground truth, which must earn 1.0. Raises RollqError."""
    title = f"environment {name}"
    environment = domain(name)
    split, count = next(iter(environment.splits().items()))
    report = check_environment(environment, split, choose_tasks(count, TASKS))
    details = {"environment": name, "tools": next(iter(report.tools), None)}
    what = f"{environment.version}, {report.played} of {count} tasks of {split}"
    if report.problems:
        remedy = f"correct the environment; `rollq env check {name}` plays more tasks"
        first, *more = report.lines
        return [Finding(title, Level.FAIL, f"{what}: {first}", remedy, more[:5], details)]
    if not report.rewards:
        says = f"{what}: no ground truth, so it is not known whether a perfect agent earns 1.0"
        return [Finding(title, Level.WARN, says, "give its tasks moves", report.notes[1:], details)]
    says = f"{what}: the ground truth earns 1.0"
    return [Finding(title, Level.OK, says, "", report.notes, details)]


def _tools_of(name: str) -> Sequence[Mapping[str, Any]] | None:
    """The tools of its first task; None when it cannot be opened, which its own check says."""
    try:
        environment = domain(name)
        first = environment.open(next(iter(environment.splits())), 0, {})
        try:
            return list(first.tools)
        finally:
            getattr(first, "close", lambda: None)()
    except FOREIGN_ERRORS:
        return None


class Limited:
    """A check that runs in a thread of its own from now on."""

    def __init__(self, name: str, check: Check, limit_s: float, remedy: str) -> None:
        """`name` and `remedy` are those of the finding if the check fails."""
        self._name, self._check, self._limit_s, self._remedy = name, check, limit_s, remedy
        self._deadline = time.monotonic() + limit_s
        self._findings: Sequence[Finding] = ()
        self._error: BaseException | None = None
        # A daemon, because one that hangs must not keep the command from ending.
        self._thread = threading.Thread(target=self._run, name=f"rollq-doctor-{name}", daemon=True)
        self._thread.start()

    def findings(self) -> Sequence[Finding]:
        """Waits for the findings, but not longer than the limit. Raises ModuleNotFoundError."""
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            return [self._failure(f"not checked: the check did not end within {self._limit_s:g} s")]
        if isinstance(self._error, ModuleNotFoundError):
            raise self._error
        if self._error is None:
            return self._findings
        text = ADDRESS.sub(lambda address: mask_url(address[0]), str(self._error))
        is_foreseen = isinstance(self._error, RollqError | OSError)
        return [self._failure(text if is_foreseen else f"{type(self._error).__name__}: {text}")]

    def _run(self) -> None:
        try:
            self._findings = self._check()
        except BaseException as e:  # of Redis, Celery, and other people's environments
            self._error = e

    def _failure(self, says: str) -> Finding:
        return Finding(self._name, Level.FAIL, says, self._remedy)
