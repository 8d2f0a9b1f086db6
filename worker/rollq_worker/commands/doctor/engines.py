"""What `rollq doctor` says of an engine: what a worker finds when it starts, and what it is.

The checks of a start are `startup_checks.check_engine`. Nothing here changes an engine.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

from rollq.errors import LedgerError, SettingsError
from rollq.ledger.reader import LedgerReader
from rollq.ledger.versions import Versions
from rollq.ledger.workers.engine_addresses import read_list
from rollq.ledger.workers.reaping import ActiveRuns
from rollq.servers.connection import connect
from rollq.servers.health import Finding, Level
from rollq.servers.retry import CONNECTION_ERRORS
from rollq.settings import FILE, REDIS, Settings
from rollq_worker.engine.limits import UNLIMITED, read_limits
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.engine.vocabulary_proof import VocabularyProof
from rollq_worker.process.startup_checks import check_engine
from rollq_worker.protocols import Adapter
from rollq_worker.remote.http_client import NoResponse
from rollq_worker.tokens.tokenizer import Tokenizer

TESTED = ((0, 5, 15), (0, 5, 23))
"""The oldest and the newest SGLang that rollq is tested with."""
START = (
    "start it, wait until it is loaded, continue it if it is paused, or pass --engine URL "
    "(ROLLQ_ENGINE_URL)"
)
CORRECT = "correct the list, or pass --engine URL"
OTHER = (
    "pass --engine URL of an SGLang server with this model, or --tokenizer of the model "
    "that the server has"
)
BEHIND = "check the engines behind the router: rollq doctor --engine URL"
REACH = "start it, or run rollq doctor on a machine that reaches it"
UNBOUNDED = "start it without --max-queued-requests, or the router with --disable-circuit-breaker"
AFFINITY = (
    "use a policy that follows X-SMG-Routing-Key (sglang-router --policy manual, smg "
    "--policy consistent_hashing), or"
    " give workers the engines themselves"
)


def addresses(settings: Settings) -> tuple[list[str], list[Finding]]:
    """The engines' addresses, also those in a file or in Redis, and what is wrong with
    such lists.
    """
    urls: list[str] = []
    problems: list[Finding] = []
    for source in settings.engine_urls:
        if not source.startswith((FILE, REDIS)):
            urls.append(source)
            continue
        client = connect(settings.redis_url, patience_s=0)
        try:
            listed = read_list(source, client)
        except (SettingsError, LedgerError, *CONNECTION_ERRORS) as e:
            problems.append(Finding(f"engine list {source}", Level.FAIL, str(e), CORRECT))
            continue
        finally:
            client.close()
        urls += listed
        if not listed:
            problems.append(
                Finding(
                    f"engine list {source}", Level.FAIL, "lists no engine", "add one to the list"
                )
            )
    return list(dict.fromkeys(urls)), problems


def check(
    url: str, tokenizer: Tokenizer | None, name: str = "engine", *, named: bool = True
) -> list[Finding]:
    """Whether the engine generates as SGLang does, and what it is; also those behind it, if it is a
    router. `name` begins the findings' names. One that is not `named`, at the default address, may
    be missing.
    """
    proof = VocabularyProof(tokenizer) if tokenizer else None
    engine = SGLangEngine(url, proof=proof)
    try:
        if not named and (why := engine.why_not_ready()):
            says = (
                f"not checked: none is named, and the default, {engine.name}, takes "
                f"no requests: {why}"
            )
            return [Finding(name, Level.WARN, says, START)]
        return _check(engine, tokenizer, proof, name)
    except NoResponse as e:
        return [Finding(name, Level.FAIL, f"{engine.name} went away: {e}", START)]
    finally:
        engine.close()


def _check(
    engine: SGLangEngine, tokenizer: Tokenizer | None, proof: VocabularyProof | None, name: str
) -> list[Finding]:
    try:
        state = check_engine(engine, tokenizer.name if tokenizer else "")
    except SettingsError as e:
        return [Finding(name, Level.FAIL, str(e), OTHER)]
    if not state.ready:
        return [Finding(name, Level.FAIL, f"{engine.name} takes no requests: {state.why}", START)]
    model = _dict(engine.control.get_json("/model_info"))
    path = model.get("model_path")
    serves = f"{engine.name} serves {path or 'a model that it does not name'}"
    if state.why:
        remedy = "continue the engine if it is paused; otherwise its log says why"
        return [Finding(name, Level.FAIL, f"{serves}, but generated nothing: {state.why}", remedy)]
    details = {"url": engine.name, "model": path}
    if tokenizer is None:
        says, remedy = f"{serves}; it was not asked for a token", "correct the tokenizer first"
        first = Finding(name, Level.WARN, says, remedy, details=details)
    else:
        first = Finding(
            name, Level.OK, f"{serves}; it samples tokens with logprobs", details=details
        )
    router = not model
    kept = [_router(engine, tokenizer, name)] if router and tokenizer else []
    if router and (behind := _behind(engine, tokenizer, name)):
        return [first, *kept, *behind]
    told = [
        _version(engine, name, router),
        _context(engine, name, router),
        _vocabulary(engine, proof, name, router),
        _weights(engine, model, name, router),
    ]
    return [first, *told, *kept]


def _version(engine: SGLangEngine, name: str, router: bool) -> Finding:
    name = f"{name} version"
    version = _dict(engine.control.get_json("/server_info")).get("version")
    if not isinstance(version, str):
        return _untold(name, "its version", router)
    details = {"version": version}
    if version.startswith("rollq-"):
        return Finding(name, Level.OK, f"the replay engine, {version}", details=details)
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    oldest, newest = (".".join(map(str, limit)) for limit in TESTED)
    if numbers and TESTED[0] <= tuple(map(int, numbers.groups())) <= TESTED[1]:
        return Finding(name, Level.OK, f"SGLang {version}", details=details)
    remedy = f"use a version from {oldest} to {newest}, or run `make test-sglang` with this one"
    return Finding(
        name, Level.WARN, f"SGLang {version} is not tested with rollq", remedy, details=details
    )


def _context(engine: SGLangEngine, name: str, router: bool) -> Finding:
    name, limits = f"{name} context", read_limits(engine.control.get_json)
    if not limits.reported:
        return _untold(name, "its context, which is learnt from its first refusal", router)
    details = {"context": limits.context, "prompt": limits.prompt}
    if limits.context == UNLIMITED:
        return Finding(
            name, Level.OK, f"prompts of less than {limits.prompt} tokens", details=details
        )
    return Finding(name, Level.OK, f"{limits.context} tokens", details=details)


def _vocabulary(
    engine: SGLangEngine, proof: VocabularyProof | None, name: str, router: bool
) -> Finding:
    """An engine with other ids does not get here."""
    name = f"{name} tokenizer"
    if proof is None:
        return Finding(
            name,
            Level.WARN,
            "not checked: there is no tokenizer to compare with",
            "correct the tokenizer",
        )
    if not engine.vocabulary.shows_ids:
        return _untold(name, "its token ids", router, {"ids": "unknown"})
    details = {"ids": "same", "tokens": proof.touched}
    return Finding(
        name, Level.OK, f"gives the same ids for {proof.touched:,} tokens", details=details
    )


def _weights(engine: SGLangEngine, model: dict[str, Any], name: str, router: bool) -> Finding:
    name, version = f"{name} weights", model.get("weight_version")
    if version is None:
        return _untold(name, "its weight version", router)
    listed = _dict(engine.control.get_json("/v1/models")).get("data") or ()
    adapters = sorted(str(each["id"]) for each in listed if each.get("parent"))
    says = f"version {version}" + (f"; adapters {', '.join(adapters)}" if adapters else "")
    return Finding(
        name,
        Level.OK,
        says,
        details={"weight_version": version, "adapters": adapters, "url": engine.name},
    )


def _router(engine: SGLangEngine, tokenizer: Tokenizer, name: str) -> Finding:
    """Whether a router sends the turns of a group to one engine, as their cached prompts show."""
    name = f"{name} router"
    prompt = tokenizer.encode(" ".join(uuid.uuid4().hex for _ in range(16)))
    cached = engine.cached_prompts(prompt)
    details = {"cached_tokens": cached}
    if all(cached[1:]):
        return Finding(
            name,
            Level.OK,
            "a router that keeps the turns of a group on one engine",
            details=details,
        )
    if any(cached):
        says = (
            f"a router that spreads the turns of a group: only {sum(map(bool, cached))} of "
            f"{len(cached)} found a cache"
        )
        return Finding(name, Level.WARN, says, AFFINITY, details=details)
    says = (
        "a router, or a server that tells little; no prompt was found in a cache, so it does "
        "not show where turns go"
    )
    return Finding(name, Level.WARN, says, AFFINITY, details=details)


def _behind(router: SGLangEngine, tokenizer: Tokenizer | None, name: str) -> list[Finding]:
    """What is told of the engines that the router lists. They are asked at once, because one that
    hangs answers late.
    """
    listed = _dict(router.control.get_json("/workers")).get("workers")
    workers = (
        [worker for worker in listed if isinstance(worker, dict)]
        if isinstance(listed, list)
        else []
    )
    names = [f"{name} behind {number}" for number in range(1, len(workers) + 1)]
    with ThreadPoolExecutor(max(1, len(workers))) as pool:
        found = list(pool.map(_one_behind, workers, repeat(tokenizer), names))
    return [finding for findings in found for finding in findings]


def _one_behind(worker: Mapping[str, Any], tokenizer: Tokenizer | None, name: str) -> list[Finding]:
    url, role = str(worker.get("url")), worker.get("worker_type")
    engine = SGLangEngine(url)
    try:
        if why := engine.why_not_ready():
            return [Finding(name, Level.WARN, f"{engine.name} takes no requests: {why}", REACH)]
        if role in ("prefill", "decode"):  # it answers the router alone
            model = _dict(engine.control.get_json("/model_info"))
            serves = Finding(
                name, Level.OK, f"{engine.name}, the {role} server of {model.get('model_path')}"
            )
            return [serves, _version(engine, name, False), _weights(engine, model, name, False)]
        queue = _dict(engine.control.get_json("/server_info")).get("max_queued_requests")
    except NoResponse as e:
        return [Finding(name, Level.WARN, f"{engine.name} went away: {e}", REACH)]
    finally:
        engine.close()
    told = check(url, tokenizer, name)
    if queue is None:
        return told
    says = (
        f"holds {queue} requests: when it is full, a router with a circuit breaker sends "
        "nothing to any engine for a"
        " minute, again and again"
    )
    return [*told, Finding(f"{name} queue", Level.WARN, says, UNBOUNDED)]


def _untold(name: str, what: str, router: bool, details: dict[str, Any] | None = None) -> Finding:
    says = f"not checked: {'a router does' if router else 'it does'} not tell {what}"
    remedy = BEHIND if router else "use a tested SGLang"
    return Finding(name, Level.WARN, says, remedy, details=details or {})


def versions_differ(findings: Sequence[Finding]) -> list[Finding]:
    """What is wrong if the engines do not serve the same weights."""
    versions = {
        str(one.details["weight_version"]) for one in findings if "weight_version" in one.details
    }
    if len(versions) < 2:
        return []
    says = f"the engines serve different weight versions: {', '.join(sorted(versions))}"
    return [
        Finding(
            "weights",
            Level.WARN,
            says,
            "load the same weights into all of them: rollq engines sync",
        )
    ]


def too_old(settings: Settings, findings: Sequence[Finding]) -> list[Finding]:
    """What is wrong if engines serve weights with which workers play no job of a run, or lack its
    adapter.
    """
    served = sorted(
        {str(one.details["weight_version"]) for one in findings if "weight_version" in one.details}
    )
    client = connect(settings.redis_url, patience_s=0)
    try:
        readers = [LedgerReader(client, run) for run in ActiveRuns(client).names()]
        return [finding for reader in readers for finding in _unsuited(reader, served, findings)]
    except (LedgerError, *CONNECTION_ERRORS):
        return []  # the check of Redis says so
    finally:
        client.close()


def _unsuited(
    reader: LedgerReader, served: Sequence[str], findings: Sequence[Finding]
) -> list[Finding]:
    standing, versions = reader.standing(), Versions(reader.redis, reader.run)
    if (policy := standing.published) is None:
        return []
    if adapter := versions.adapter():
        return _lacking(reader.run, Adapter(adapter, policy.weight_version), findings)
    if standing.admission is None:
        return []
    steps = versions.steps(served)
    if not (old := [version for version in served if steps.get(version, -1) < policy.step]):
        return []
    says = (
        f"run {reader.run} bounds staleness and has published version "
        f"{policy.weight_version} (step {policy.step});"
        f" engines that serve version {', '.join(old)} play none of its jobs"
    )
    remedy = (
        "rollq engines sync loads the published weights, or publish under the name that the "
        "engines give theirs"
    )
    return [Finding("weights", Level.WARN, says, remedy)]


def _lacking(run: str, adapter: Adapter, findings: Sequence[Finding]) -> list[Finding]:
    told = {
        str(one.details["url"]): one.details["adapters"]
        for one in findings
        if "adapters" in one.details
    }
    if not (lack := [url for url, adapters in told.items() if adapter.served not in adapters]):
        return []
    says = (
        f"run {run} is sampled by its adapter {adapter.served}, which is not loaded on "
        f"{', '.join(lack)}"
    )
    remedy = (
        f"rollq engines sync --adapter {adapter.name} --path DIR --version "
        f"{adapter.version} loads it"
    )
    return [Finding("weights", Level.WARN, says, remedy)]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
