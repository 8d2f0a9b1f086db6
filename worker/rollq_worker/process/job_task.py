"""Runs one job: claim, play, report.

The invariant: the worker outlives every job, because every error becomes a failure of its attempt.
A run that this worker cannot play is remembered, so that its jobs are given back unclaimed. Such a
run has another tokenizer, another schema, or files that are not here, or needs a service that is
away. It knows the ledger; `episode_player` plays the job, and `celery_app` receives messages.
"""

import logging
import random
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from rollq.errors import (
    ContractError,
    Fenced,
    ForOtherWorkers,
    JobFailure,
    LedgerError,
    RolloutFailure,
    ServiceAway,
    UnknownSchema,
    WorkerFailure,
)
from rollq.job import parse_id
from rollq.ledger.constants import LONGEST_REASON
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import Claim, Refusal
from rollq.servers.retry import CONNECTION_ERRORS, RetryLoop
from rollq.settings import Settings
from rollq.token_stats import count_tokens
from rollq.trajectory import Trajectory
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Diverged, Drained, OtherWeights
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.process.episode_player import EpisodePlayer
from rollq_worker.process.time_spent import TimeSpent
from rollq_worker.remote.waiting import CHECK_S
from rollq_worker.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

WEIGHTS_PAUSE_S = 2.0
"""Seconds for which a message waits while no engine has new enough weights for its run. Then the
slot may play another run.
"""
LATER_S = 10.0
"""Seconds after which a job that no worker can play now is sent again, so that other runs get the
slots. More than constants.SENDING_S: the confirmation of its last message may be under way.
"""
SKIP_S = 60.0
"""Seconds for which nothing is claimed of a run after one of its jobs could not be played."""
AWAY_SKIP_S = 10.0
"""The same for a run that only lacks a service, which may come back soon."""
SHOWN_SKIPS = 2
"""A skipped run is shown for so many times these seconds. The next try comes before they are over.
"""

Summary = dict[str, Any]
"""Outcome of a message, for Flower and for metrics. rollq's own counts come from the ledger."""


class IncompatibleRuns:
    """The runs of one worker, for all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recorded: dict[str, tuple[float, float, str]] = {}
        """Monotonic time at which a job of each run was met last, the seconds for which the run is
        skipped, and the reason why it cannot be played.
        """

    def record(self, run: str, reason: str, skip_s: float = SKIP_S) -> None:
        """Records a job that cannot be played. Logged once for each run."""
        with self._lock:
            is_new = run not in self.reasons()
            self._recorded[run] = (time.monotonic(), skip_s, reason)
        if is_new:
            log.error("this worker does not play run %s: %s", run, reason)

    def skips(self, run: str) -> bool:
        """True while nothing is claimed of the run."""
        recorded_at, skip_s, _ = self._recorded.get(run, (0.0, float("-inf"), ""))
        return time.monotonic() - recorded_at < skip_s

    def reasons(self) -> Mapping[str, str]:
        """The runs that were recorded lately, with the reason."""
        now = time.monotonic()
        return {
            run: reason
            for run, (recorded_at, skip_s, reason) in self._recorded.copy().items()
            if now - recorded_at < SHOWN_SKIPS * skip_s
        }


class JobRunner:
    """Runs jobs, one per thread. The threads share everything that it holds."""

    def __init__(
        self,
        settings: Settings,
        connection: Any,
        engine: EnginePool,
        tokenizer: Tokenizer,
        name: str,
        draining: threading.Event,
        on_slots_lost: Callable[[], None] = lambda: None,
        models: Mapping[str, EnginePool] = MappingProxyType({}),
    ) -> None:
        """`on_slots_lost` is called when most slots are lost to foreign code that does not end.
        `models` are engines of other models than the policy, by name.
        """
        self.settings = settings
        self.engine = engine
        self.tokenizer = tokenizer
        self.name = name
        self.draining = draining
        self._pools = (engine, *models.values())
        self.leases = Leases(
            draining,
            engine.stopped_s,
            end_engine_wait=lambda key: [pool.cut(key) for pool in self._pools],
            slots=settings.concurrency,
            on_slots_lost=on_slots_lost,
        )
        self.time_spent = TimeSpent(name, self.leases.held, engine.traffic)
        # bounded: a message may name any run, even one that does not exist
        self.ledger_of = lru_cache(256)(lambda run: Ledger(connection, run))
        self.episodes = EpisodePlayer(settings, engine, tokenizer, name, models)
        self._retry = RetryLoop(wait=self._pause, relogin=True)
        self.incompatible_runs = IncompatibleRuns()
        self.attempt_counts: Counter[tuple[str, str, str]] = Counter()
        """Attempts by stop, class of failure, and the state of their job then."""
        self._counting = threading.Lock()

    def run(
        self, job_id: str, on_claim: Callable[[Attempt], object] = lambda attempt: None
    ) -> Summary:
        """Runs the job if this worker can claim it. `on_claim` gets the attempt first."""
        try:
            run, _, _ = parse_id(job_id)
        except ContractError as e:
            log.error("ignoring a message: %s", e)
            return {"stop": "ignored"}
        ledger = self.ledger_of(run)
        if self.incompatible_runs.skips(run):
            self._resend(ledger, job_id, LATER_S)
            return {"stop": "refused: left to other workers"}
        if not self._can_sample(run):
            self._resend(ledger, job_id, LATER_S)
            return {"stop": "refused: no engine has the run's weights"}
        try:
            claim = self._claim(ledger, job_id)
        except Drained:
            self._resend(ledger, job_id)
            return {"stop": "bounced"}
        except LedgerError as e:
            log.error("%s: refused by the ledger: %s", job_id, e)
            return {"stop": "refused: damaged"}
        if isinstance(claim, Refusal):
            return self._handle_refusal(ledger, job_id, claim)
        with self.leases.hold(ledger, claim) as attempt:
            on_claim(attempt)
            summary = self._run_attempt(attempt, claim)
        with self._counting:
            failure = summary.get("failure", "")
            self.attempt_counts[summary["stop"], failure, summary.get("then", "")] += 1
        return summary

    def _can_sample(self, run: str) -> bool:
        """True once no episode of the run waits for weights. Gives up after WEIGHTS_PAUSE_S:
        another episode would only wait as well.
        """
        until = time.monotonic() + WEIGHTS_PAUSE_S
        while self.engine.awaits_weights(run):
            if time.monotonic() > until or self.draining.wait(random.uniform(0.5, 1.5)):
                return False
        return True

    def _handle_refusal(self, ledger: Ledger, job_id: str, refusal: Refusal) -> Summary:
        """Summary of a refused claim. The ledger sends the job again if another worker may play
        it.
        """
        if refusal.reason == "unreadable":
            log.error("%s: the job cannot be read: %s", job_id, refusal.detail)
        elif refusal.reason in ("tokenizer", "schema"):
            self.incompatible_runs.record(ledger.run, refusal.detail)
            self._resend(ledger, job_id, LATER_S)
        return {"stop": f"refused: {refusal.reason}"}

    def _claim(self, ledger: Ledger, job_id: str) -> Claim | Refusal:
        """Waits while the engine or Redis is away or full. Raises Drained, or LedgerError when a
        key is damaged.
        """
        claim_once = partial(
            ledger.claim,
            job_id,
            worker=self.name,
            token=uuid.uuid4().hex,
            tokenizer_hash=self.tokenizer.hash,
            template_hash=self.tokenizer.template_hash,
        )

        def claim() -> Claim | Refusal:
            self._pause(0.0)
            # While the engine is away (its watch asks it), nothing is claimed: an outage costs no
            # job an attempt.
            while not self.engine.available:
                self._pause(CHECK_S)
            return claim_once()

        return self._retry(claim)

    def _pause(self, seconds: float) -> None:
        if self.draining.wait(seconds):
            raise Drained("the worker is stopping")

    def _resend(self, ledger: Ledger, job_id: str, after_s: float = 0.0) -> None:
        call = partial(ledger.resend, job_id, after_s)
        self._try_to_hand_back(call, f"{job_id}: not handed back (%s); it is sent again later")

    def _run_attempt(self, attempt: Attempt, claim: Claim) -> Summary:
        job = claim.job
        started = time.monotonic()
        try:
            trajectory = self.episodes.play(attempt, claim)
            stats = count_tokens(trajectory, self.tokenizer.reencode)
            attempt.complete(trajectory, stats)
        except Fenced as e:
            return self._summary_of_fenced(attempt, str(e))
        except Drained:
            return self._release(attempt)
        except Diverged as e:
            log.warning("%s: it begins again without its journal: %s", job.id, e)
            return self._release(attempt, restart=True)
        except OtherWeights as e:
            log.info("%s: it comes again in %g s", e, LATER_S)
            return self._release_and_resend(attempt)
        except LedgerError as e:
            return self._release_damaged(attempt, e)
        except (UnknownSchema, ForOtherWorkers) as e:
            return self._release_for_other_workers(attempt, e)
        except RolloutFailure as e:
            return self._fail(attempt, e)
        except ContractError as e:
            return self._fail(attempt, JobFailure(str(e)), traceback.format_exc())
        except BaseException as e:
            # A bug, a lack of memory or a panic in Rust code (which is not an Exception) costs one
            # attempt, never this thread.
            log.exception("%s: attempt %d broke", job.id, attempt.number)
            return self._fail(
                attempt, WorkerFailure(f"{type(e).__name__}: {e}"), traceback.format_exc()
            )
        finally:
            self._leave_engines(attempt)
        return _summary_of(trajectory, time.monotonic() - started)

    def _leave_engines(self, attempt: Attempt) -> None:
        job_id = attempt.job.id
        # An agent program may have several requests under way. A later attempt of the job, where
        # this one was abandoned, keeps its own.
        is_last = all(other is attempt or other.job.id != job_id for other in self.leases.held())
        for pool in self._pools:
            if is_last:
                pool.cut(job_id)
            pool.end(job_id)

    def _fail(self, attempt: Attempt, failure: RolloutFailure, trace: str = "") -> Summary:
        if failure.__cause__ and not trace:
            trace = "".join(traceback.format_exception(failure.__cause__))
        reason = f"{failure}\n{trace}".strip()
        try:
            outcome = attempt.fail(failure.failure, _shortened(reason))
        except Drained:
            return self._release(attempt)
        except Fenced as e:
            return self._summary_of_fenced(
                attempt, f"{attempt.job.id}: its failure ({failure}) was not taken: {e}"
            )
        except LedgerError as e:
            return self._release_damaged(attempt, e)
        why = f"{failure.failure}: {failure}"
        log.warning("%s: attempt %d: %s (%s)", attempt.job.id, attempt.number, why, outcome)
        return {
            "job": attempt.job.id,
            "stop": "failed",
            "failure": failure.failure,
            "then": outcome,
            "why": why,
        }

    def _summary_of_fenced(self, attempt: Attempt, reason: str) -> Summary:
        """Summary of an attempt that lost its lease, or whose thread was left behind for long."""
        if attempt.abandoned_why:
            return {"job": attempt.job.id, "stop": "abandoned", "why": attempt.abandoned_why}
        log.warning("%s", reason)
        return {"job": attempt.job.id, "stop": "fenced"}

    def _release_damaged(self, attempt: Attempt, error: LedgerError) -> Summary:
        """Gives the job back at no cost: a key of its run is not as the ledger writes it."""
        log.error(
            "%s: attempt %d: refused by the ledger: %s", attempt.job.id, attempt.number, error
        )
        return self._release_and_resend(attempt)

    def _release_for_other_workers(
        self, attempt: Attempt, error: UnknownSchema | ForOtherWorkers
    ) -> Summary:
        """Gives the job back at no cost: only another version of rollq can read its journal, or
        only other workers have the file or the services of its environment.
        """
        skip_s = AWAY_SKIP_S if isinstance(error, ServiceAway) else SKIP_S
        self.incompatible_runs.record(attempt.job.run, str(error), skip_s)
        return self._release_and_resend(attempt)

    def _release_and_resend(self, attempt: Attempt) -> Summary:
        """Releases the job, which is sent again in LATER_S seconds."""
        summary = self._release(attempt)
        self._resend(attempt.ledger, attempt.job.id, LATER_S)
        return summary

    def _release(self, attempt: Attempt, *, restart: bool = False) -> Summary:
        warning = f"{attempt.job.id}: not released (%s): its lease expires"
        released = self._try_to_hand_back(partial(attempt.release, restart=restart), warning)
        return {"job": attempt.job.id, "stop": "released" if released else "fenced"}

    def _try_to_hand_back(self, call: Callable[[], object], failed: str) -> bool:
        """True if the job was handed back."""
        try:
            call()
            return True
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning(failed, type(e).__name__)
            return False


def _summary_of(trajectory: Trajectory, seconds: float) -> Summary:
    return {
        "job": trajectory.job.id,
        "stop": trajectory.stop,
        "reward": trajectory.reward,
        "turns": trajectory.turns,
        "tokens": len(trajectory.tokens),
        "seconds": round(seconds, 2),
    }


def _shortened(reason: str) -> str:
    """The first words and the end of a reason: a traceback says most at its end."""
    if len(reason) <= LONGEST_REASON:
        return reason
    head_length = 200
    return reason[:head_length] + reason[head_length - LONGEST_REASON :]
