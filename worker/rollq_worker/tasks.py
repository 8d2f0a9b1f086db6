"""What a Celery task does: claim a job, play it, and tell the ledger how it ended.

Nothing that a job does may take the worker down: every failure ends here as a failure of its attempt. It knows the
ledger and the agent loop; how messages arrive is `app`'s business.
"""

import json
import logging
import random
import threading
import time
import traceback
import uuid
from typing import Any

import rollq
from rollq.errors import ContractError, Fenced, JobFailure, LedgerError, RolloutFailure, SettingsError, WorkerFailure
from rollq.job import parse_id
from rollq.ledger import Claim, Ledger, Refusal
from rollq.settings import Settings
from rollq.trajectory import Event, Header, Sampled, Trajectory
from rollq_worker import episode
from rollq_worker.boundary import Drained
from rollq_worker.engine import SGLangEngine
from rollq_worker.environments import domain
from rollq_worker.lease import LEASE_S, Attempt, Leases
from rollq_worker.protocols import Environment
from rollq_worker.renderer import ChatRenderer
from rollq_worker.replayed import Diverged
from rollq_worker.selfcheck import checked_renderer
from rollq_worker.tokenizer import Tokenizer
from rollq_worker.users import user_factory

log = logging.getLogger(__name__)

MAX_REASON = 8000
"""Characters of a failure's reason that the ledger keeps; the end of a traceback says most."""

SAME_WORLD = ("env_version", "task_hash", "template_hash", "tokenizer_hash", "history")
"""Of the header: a journal is only gone on with where these agree."""

Summary = dict[str, Any]
"""What the task returns, for Flower: rollq's own counts come from the ledger."""


class Player:
    """Plays jobs, one a thread; everything it holds is shared by all of them."""

    def __init__(self, settings: Settings, connection: Any, engine: SGLangEngine, tokenizer: Tokenizer, name: str):
        self.settings = settings
        self.connection = connection
        self.engine = engine
        self.tokenizer = tokenizer
        self.name = name
        self.draining = threading.Event()
        self.leases = Leases(self.draining, lambda: engine.outage_s)
        self._ledgers: dict[str, Ledger] = {}
        self._renderers: dict[str, ChatRenderer] = {}
        self._admitted: set[str] = set()
        self._lock = threading.Lock()

    def play(self, job_id: str) -> Summary:
        """Play the job if it is to be played, to whatever end. Raises only what keeps the ledger from being told."""
        try:
            run, _, _ = parse_id(job_id)
        except ContractError as e:
            log.error("ignoring a message: %s", e)
            return {"stop": "ignored"}
        ledger = self.ledger(run)
        if not self.admits(ledger):
            return {"stop": "refused: another tokenizer"}
        if not self.wait_for_engine():
            ledger.bounce(job_id)
            return {"stop": "bounced"}
        try:
            claim = ledger.claim(job_id, worker=self.name, token=uuid.uuid4().hex, lease_s=LEASE_S)
        except LedgerError as e:
            log.error("%s: refused by the ledger: %s", job_id, e)
            return {"stop": "refused: damaged"}
        if isinstance(claim, Refusal):
            if claim.reason == "unreadable":
                log.error("%s: the job cannot be read: %s", job_id, claim.detail)
            return {"stop": f"refused: {claim.reason}"}
        with self.leases.hold(ledger, claim) as attempt:
            return self._attempt(attempt, claim)

    def admits(self, ledger: Ledger) -> bool:
        """Whether this worker may play the run: the first claim fixes its tokenizer and template for all workers.

        A refused message is simply dropped: the ledger publishes the job again for others.
        """
        if ledger.run not in self._admitted:
            try:
                ledger.fix_hashes(self.tokenizer.hash, self.tokenizer.template_hash)
            except SettingsError as e:
                log.error("this worker does not play run %s: %s", ledger.run, e)
                return False
            self._admitted.add(ledger.run)
        return True

    def wait_for_engine(self) -> bool:
        """Claim nothing while the engine is away: its outage costs no job anything. False when draining."""
        while not self.draining.is_set():
            if self.engine.available or self.engine.ready():
                return True
            self.draining.wait(random.uniform(0.5, 1.5))  # all idle threads ask
        return False

    def _attempt(self, attempt: Attempt, claim: Claim) -> Summary:
        job, started = claim.job, time.monotonic()
        try:
            trajectory = self._play(attempt, claim)
            attempt.complete(trajectory)
        except Fenced as e:
            log.warning("%s", e)
            return {"job": job.id, "stop": "fenced"}
        except Drained:
            attempt.release()
            return {"job": job.id, "stop": "released"}
        except RolloutFailure as e:
            return self._fail(attempt, e)
        except ContractError as e:
            return self._fail(attempt, JobFailure(str(e)), traceback.format_exc())
        except Exception as e:
            # The boundary of the worker: a bug or a lack of memory costs one attempt, never the process.
            log.exception("%s: attempt %d broke", job.id, attempt.number)
            return self._fail(attempt, WorkerFailure(f"{type(e).__name__}: {e}"), traceback.format_exc())
        return {
            "job": job.id,
            "stop": trajectory.stop,
            "reward": trajectory.reward,
            "turns": trajectory.turns,
            "tokens": len(trajectory.tokens),
            "seconds": round(time.monotonic() - started, 2),
        }

    def _play(self, attempt: Attempt, claim: Claim) -> Trajectory:
        job = claim.job
        world = domain(job.env)
        task = world.task(job.split, job.task)
        environment = world.open(job.split, job.task, job.env_args)
        renderer = self.renderer(environment)
        user = user_factory(job.user, task, seed=job.seed, endpoints=self.settings.user_endpoints, check=attempt.check)
        header = Header(
            attempt=attempt.number,
            worker=self.name,
            rollq=rollq.__version__,
            env_version=world.version,
            task_hash=task.hash,
            template_hash=self.tokenizer.template_hash,
            tokenizer_hash=self.tokenizer.hash,
            history=job.history.value,
            at=time.time(),
        )
        recorded = self._record(attempt, claim, header)
        return episode.play(
            job,
            engine=self.engine,
            renderer=renderer,
            environment=environment,
            user=user,
            journal=attempt,
            header=header,
            recorded=recorded,
        )

    def _record(self, attempt: Attempt, claim: Claim, header: Header) -> list[Event]:
        """What to play again: the events of the journal that is there, or nothing, and the header is written."""
        if not claim.journal:
            attempt.open(header)
            return []
        written, events = attempt.resume()
        for name in SAME_WORLD:
            if getattr(written, name) != getattr(header, name):
                raise Diverged(f"{claim.job.id}: {name} is another one than when the episode began")
        for event in events:
            if isinstance(event, Sampled):
                self.engine.admit(event.ids)
        return events

    def _fail(self, attempt: Attempt, failure: RolloutFailure, trace: str = "") -> Summary:
        reason = f"{failure}\n{trace or _trace(failure)}".strip()
        try:
            outcome = attempt.fail(failure.failure, reason[:200] + reason[200:][-MAX_REASON:])
        except LedgerError as e:
            log.warning("%s: its failure (%s) was not taken: %s", attempt.job.id, failure, e)
            return {"job": attempt.job.id, "stop": "fenced"}
        log.warning("%s: attempt %d: %s: %s (%s)", attempt.job.id, attempt.number, failure.failure, failure, outcome)
        return {"job": attempt.job.id, "stop": "failed", "failure": failure.failure, "then": outcome}

    def ledger(self, run: str) -> Ledger:
        with self._lock:
            if run not in self._ledgers:
                self._ledgers[run] = Ledger(self.connection, run)
            return self._ledgers[run]

    def renderer(self, environment: Environment) -> ChatRenderer:
        """The renderer for an environment's tools; its self-check runs at first use."""
        key = json.dumps(list(environment.tools), sort_keys=True)
        with self._lock:
            if key not in self._renderers:
                self._renderers[key] = checked_renderer(self.tokenizer, list(environment.tools))
            return self._renderers[key]


def _trace(error: BaseException) -> str:
    """The traceback of what was behind a typed failure, if there was something."""
    return "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
