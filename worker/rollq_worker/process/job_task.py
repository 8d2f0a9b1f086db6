"""What a Celery task does: claim a job, play it, and tell the ledger how it ended.

Nothing that a job does may take the worker down: every failure ends here as a failure of its attempt. It knows the
ledger and the agent loop; how messages arrive is `app`'s business.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import logging
import random
import threading
import time
import traceback
import uuid
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import rollq
from rollq.errors import (
    ContractError,
    EnvironmentFailure,
    Fenced,
    JobFailure,
    LedgerError,
    RolloutFailure,
    SettingsError,
    WorkerFailure,
)
from rollq.job import parse_id
from rollq.ledger.connection import CONNECTION_ERRORS
from rollq.ledger.ledger import Claim, Ledger, Refusal
from rollq.ledger.retry import retry
from rollq.settings import Settings
from rollq.token_stats import fidelity
from rollq.trajectory import Event, Header, Sampled, Trajectory
from rollq_worker.engine.quarantine import Poison
from rollq_worker.engine.sglang_client import SGLangEngine
from rollq_worker.environments import domain
from rollq_worker.episode import loop
from rollq_worker.episode.resume import Diverged
from rollq_worker.episode.tool_schemas import schemas_of
from rollq_worker.failures import Drained
from rollq_worker.process.isolation import Isolation
from rollq_worker.process.leases import LEASE_S, Attempt, Leases
from rollq_worker.process.renderer_cache import Renderers
from rollq_worker.process.time_limits import OPEN_S, STEP_S, Abandoned, WatchedEnvironment
from rollq_worker.protocols import Domain, Environment, Task
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users import longest_reply_s, user_factory

log = logging.getLogger(__name__)

MAX_REASON = 8000
"""Characters of a failure's reason that the ledger keeps; the end of a traceback says most."""
KNOWN = 256
"""Runs whose ledgers are kept at hand. A message may name any run, also one that there is not."""
REFUSED_S = 5.0
"""Until a job is given back whose attempt the ledger would not write down: it may come round again at once."""

SAME_WORLD = ("env_version", "task_hash", "template_hash", "tokenizer_hash", "history", "template_kwargs")
"""Of the header: a journal is only gone on with where these agree."""

Summary = dict[str, Any]
"""What the task returns, for Flower: rollq's own counts come from the ledger."""


class Player:
    """Plays jobs, one a thread; everything it holds is shared by all of them."""

    def __init__(
        self,
        settings: Settings,
        connection: Any,
        engine: SGLangEngine,
        tokenizer: Tokenizer,
        name: str,
        draining: threading.Event,
    ) -> None:
        self.settings = settings
        self.connection = connection
        self.engine = engine
        self.tokenizer = tokenizer
        self.name = name
        self.draining = draining
        self.isolation = Isolation(settings.isolate)
        self.leases = Leases(
            self.draining,
            lambda: engine.outage_s,
            cut=engine.cut,
            slots=settings.concurrency,
            crippled=lambda: self.crippled(),
        )
        self.crippled: Callable[[], None] = lambda: None
        """Called when most slots are lost to code that does not end."""
        self.ledger = lru_cache(KNOWN)(lambda run: Ledger(connection, run))
        self.renderers = Renderers(tokenizer)
        self._admitted: WeakSet[Ledger] = WeakSet()  # as long as they are kept at hand
        self._strange: WeakSet[Ledger] = WeakSet()  # runs with another tokenizer, of which it was said

    def play(self, job_id: str) -> Summary:
        """Play the job if it is to be played, to whatever end. Raises only what keeps the ledger from being told."""
        try:
            run, _, _ = parse_id(job_id)
        except ContractError as e:
            log.error("ignoring a message: %s", e)
            return {"stop": "ignored"}
        ledger = self.ledger(run)
        try:
            claim = self._claim(ledger, job_id)
        except Drained:
            self._bounce(ledger, job_id)
            return {"stop": "bounced"}
        except LedgerError as e:
            log.error("%s: refused by the ledger: %s", job_id, e)
            return {"stop": "refused: damaged"}
        if isinstance(claim, Refusal):
            if claim.reason == "unreadable":
                log.error("%s: the job cannot be read: %s", job_id, claim.detail)
            return {"stop": f"refused: {claim.reason}"}
        with self.leases.hold(ledger, claim) as attempt:
            return self._attempt(attempt, claim)

    def _claim(self, ledger: Ledger, job_id: str) -> Claim | Refusal:
        """Waits while engine or Redis are away or full. Raises Drained, and LedgerError when a key is damaged."""
        token = uuid.uuid4().hex
        while True:
            try:
                if refusal := retry(lambda: self.admit(ledger), wait=self._pause):
                    return refusal
                self.wait_for_engine()
                return retry(
                    lambda: ledger.claim(job_id, worker=self.name, token=token, lease_s=LEASE_S), wait=self._pause
                )
            except CONNECTION_ERRORS:
                self._pause(random.uniform(0.5, 1.5))

    def _pause(self, seconds: float) -> None:
        if self.draining.wait(seconds):
            raise Drained("the worker is stopping")

    def _bounce(self, ledger: Ledger, job_id: str) -> None:
        try:
            ledger.bounce(job_id)
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning("%s: not handed back (%s); it is published again later", job_id, type(e).__name__)

    def admit(self, ledger: Ledger) -> Refusal | None:
        """Why this worker may not play the run: the first claim fixes its tokenizer and template for all workers.

        A refused message is simply dropped: the ledger publishes the job again for others.
        """
        if ledger in self._admitted:
            return None
        try:
            known = ledger.fix_hashes(self.tokenizer.hash, self.tokenizer.template_hash)
        except SettingsError as e:
            if ledger not in self._strange:  # it gets a message a moment, if there is no other worker
                log.error("this worker does not play run %s: %s", ledger.run, e)
                self._strange.add(ledger)
            return Refusal("another tokenizer")
        if not known:
            return Refusal("unknown")
        self._admitted.add(ledger)
        return None

    def wait_for_engine(self) -> None:
        """Claim nothing while the engine is away: its outage costs no job anything. Raises Drained."""
        self._pause(0.0)
        while not (self.engine.available or self.engine.ready()):
            self._pause(random.uniform(0.5, 1.5))  # all idle threads ask

    def _attempt(self, attempt: Attempt, claim: Claim) -> Summary:
        job, started = claim.job, time.monotonic()
        try:
            trajectory = self._play(attempt, claim)
            attempt.complete(trajectory, fidelity(trajectory, self._respell))
        except Fenced as e:
            log.warning("%s", e)
            return {"job": job.id, "stop": "fenced"}
        except Abandoned:
            return {"job": job.id, "stop": "abandoned"}
        except Drained:
            return self._release(attempt)
        except LedgerError as e:
            return self._refused(attempt, e)
        except RolloutFailure as e:
            return self._fail(attempt, e)
        except ContractError as e:
            return self._fail(attempt, JobFailure(str(e)), traceback.format_exc())
        except BaseException as e:
            # The boundary of the worker: a bug, a lack of memory or a panic in Rust code (which is no Exception) costs
            # one attempt, never this thread.
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
        with attempt.steps.inside(EnvironmentFailure, f"opening {job.env}", OPEN_S), ExitStack() as stack:
            world = domain(job.env)
            task = world.task(job.split, job.task)
            if self.isolation.applies(job.env):
                opened: Environment = stack.enter_context(
                    self.isolation.open(job.env, job.split, job.task, job.env_args, attempt.check)
                )
            else:
                opened = world.open(job.split, job.task, job.env_args)
            ended = stack.pop_all()
        with ended:
            return self._episode(attempt, claim, world, task, opened)

    def _episode(
        self, attempt: Attempt, claim: Claim, world: Domain, task: Task, environment: Environment
    ) -> Trajectory:
        job = claim.job
        with attempt.steps.inside(EnvironmentFailure, f"{job.id}: environment.tools", STEP_S):
            tools = schemas_of(environment)
        renderer = self.renderers.of(job, tools)
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
            template_kwargs=dict(renderer.family.kwargs),
            at=time.time(),
        )
        recorded = self._record(attempt, claim, header)
        return loop.play(
            job,
            engine=self.engine,
            renderer=renderer,
            environment=WatchedEnvironment(environment, attempt.steps, longest_reply_s(user)),
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

    def _respell(self, ids: array[int]) -> array[int]:
        return self.tokenizer.encode(self.tokenizer.decode(ids))

    def _fail(self, attempt: Attempt, failure: RolloutFailure, trace: str = "") -> Summary:
        reason = f"{failure}\n{trace or _trace(failure)}".strip()
        reason = reason[:200] + reason[200:][200 - MAX_REASON :]
        try:
            outcome = attempt.fail(failure.failure, reason, final=isinstance(failure, Poison))
        except Drained:
            return self._release(attempt)
        except Fenced as e:
            log.warning("%s: its failure (%s) was not taken: %s", attempt.job.id, failure, e)
            return {"job": attempt.job.id, "stop": "fenced"}
        except LedgerError as e:
            return self._refused(attempt, e)
        log.warning("%s: attempt %d: %s: %s (%s)", attempt.job.id, attempt.number, failure.failure, failure, outcome)
        return {"job": attempt.job.id, "stop": "failed", "failure": failure.failure, "then": outcome}

    def _refused(self, attempt: Attempt, error: LedgerError) -> Summary:
        """The ledger is damaged where the attempt would write: nobody's failure, so the job goes back as it is."""
        log.error("%s: attempt %d: refused by the ledger: %s", attempt.job.id, attempt.number, error)
        self.draining.wait(REFUSED_S)
        return self._release(attempt)

    def _release(self, attempt: Attempt) -> Summary:
        try:
            attempt.release()
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning("%s: not released (%s): its lease expires", attempt.job.id, type(e).__name__)
            return {"job": attempt.job.id, "stop": "fenced"}
        return {"job": attempt.job.id, "stop": "released"}


def _trace(error: BaseException) -> str:
    """The traceback of what was behind a typed failure, if there was something."""
    return "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
