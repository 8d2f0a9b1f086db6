"""What `rollq doctor` says of the ledger's Redis and of the live workers that are
registered there.
"""

from collections.abc import Sequence
from typing import Any

import rollq
from rollq.commands.connect import ping_redis
from rollq.errors import RollqError
from rollq.ledger.workers.live_workers import AWAY, LIVE_S, READY, SILENT_S, LiveWorker, queues_of
from rollq.servers import health
from rollq.servers.connection import connect
from rollq.servers.health import Finding, Level
from rollq.servers.refusal import no_answer
from rollq.settings import Settings
from rollq.snapshot.fleet import read_workers
from rollq.urls import mask_url
from rollq_worker.process import redis_rights
from rollq_worker.process.redis_rights import Part
from rollq_worker.tokens.tokenizer import Tokenizer

START = "start one with `rollq redis`, or pass --redis URL (ROLLQ_REDIS_URL)"
RIGHTS = "redis rights"
WORKERS = "workers"
SHOWN_RIGHTS = 3
"""Number of missing rights that are printed for a part."""


def check_redis(settings: Settings) -> list[Finding]:
    """Whether it answers, how it is configured, how fast it is, and what its user may do."""
    try:
        ping_redis(settings.redis_url)
    except RollqError as e:
        return [Finding("redis", Level.FAIL, str(e), no_answer(e.__cause__) or START)]
    client = connect(settings.redis_url, patience_s=0)
    try:
        answers = Finding("redis", Level.OK, f"{mask_url(settings.redis_url)} answers")
        told = health.findings(client)
        return [
            *([] if told[0].name == "redis" else [answers]),
            *told,
            health.latency(client),
            _rights(client),
        ]
    finally:
        client.close()


def _rights(client: Any) -> Finding:
    lacking = {part: redis_rights.missing(client, part) for part in Part}
    return rights(RIGHTS, lacking)


def rights(name: str, lacking: dict[Part, list[str]]) -> Finding:
    """What is said of a user that lacks these rights."""
    may = [part for part, missing in lacking.items() if not missing]
    lines = [f"{part} lacks {_some(missing)}" for part, missing in lacking.items() if missing]
    details = {"missing": lacking}
    if lacking[Part.WORKER]:
        says = "this user may not do what a worker does" + (
            f", only what a {' and a '.join(may)} does" if may else ""
        )
        return Finding(name, Level.FAIL, says, redis_rights.REMEDY, lines, details)
    return Finding(
        name, Level.OK, f"this user may do what a {' and a '.join(may)} does", "", lines, details
    )


def _some(missing: Sequence[str]) -> str:
    more = len(missing) - SHOWN_RIGHTS
    return "; ".join(missing[:SHOWN_RIGHTS]) + (f"; and {more} more" if more > 0 else "")


def check_workers(settings: Settings, tokenizer: Tokenizer | None) -> list[Finding]:
    """Whether the live workers are heard of, are of this version, and may play what this machine's
    settings say.
    """
    client = connect(settings.redis_url, patience_s=0)
    try:
        fleet = read_workers(client)
    finally:
        client.close()
    workers = fleet.workers
    if not workers:
        says, remedy = f"none was heard of in the last {LIVE_S} s", "start one: rollq worker"
        if fleet.server.trouble:
            says, remedy = f"{says}, and Redis takes no writes: {fleet.server.trouble}", "see redis"
        return [Finding(WORKERS, Level.WARN, says, remedy, details={"workers": []})]
    problems = [problem for worker in workers for problem in _problems(worker, tokenizer)]
    if unserved := sorted({*settings.queues} - queues_of(workers)):
        problems.append((f"no live worker serves {', '.join(unserved)}", "start one with --queues"))
    heard = f"last heard of {max(worker.age_s for worker in workers):g} s ago"
    says = f"{len(workers)} live, {fleet.in_flight} of {fleet.slots} slots busy, {heard}"
    details = {"workers": [_as_json(worker) for worker in workers]}
    if not problems:
        return [Finding(WORKERS, Level.OK, says, details=details)]
    remedies = list(dict.fromkeys(remedy for _, remedy in problems))
    lines = [problem for problem, _ in problems]
    return [
        Finding(WORKERS, Level.WARN, f"{says}; {lines[0]}", "; ".join(remedies), lines[1:], details)
    ]


def _problems(worker: LiveWorker, tokenizer: Tokenizer | None) -> list[tuple[str, str]]:
    """What is odd about a worker, and what to do."""
    problems = []
    if worker.version != rollq.__version__:
        version = worker.version or "an older version"
        remedy = "install the same version everywhere, and restart those workers"
        problems.append((f"{worker.name} runs rollq {version}, not {rollq.__version__}", remedy))
    if worker.age_s >= SILENT_S:
        remedy = "look whether that worker lives; what it played comes back"
        problems.append((f"nothing was heard of {worker.name} for {worker.age_s:g} s", remedy))
    if tokenizer is not None and not worker.plays(tokenizer.hash, tokenizer.template_hash):
        remedy = "give all workers of a run the same --tokenizer and --template"
        problems.append(
            (f"{worker.name} has another tokenizer or chat template than {tokenizer.name}", remedy)
        )
    problems += [
        (f"{worker.name} cannot play run {run}: {why}", "give it what it lacks")
        for run, why in worker.left_alone
    ]
    if worker.engine == AWAY:
        problems.append(
            (f"the engine of {worker.name} is away", "start it, or correct that worker's --engine")
        )
    else:
        states = {engine.url: engine.state for engine in worker.engines if engine.state != READY}
        problems += [
            (f"{url} is {state}, as {worker.name} says", "see the engine's line")
            for url, state in states.items()
        ]
    return problems


def _as_json(worker: LiveWorker) -> dict[str, object]:
    names = ("name", "version", "queues", "engine", "slots", "busy", "age_s")
    return {name: getattr(worker, name) for name in names}
