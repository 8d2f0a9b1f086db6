"""Runs one job: claim, play, report.

The invariant: the worker outlives every job, because every error becomes a failure of its attempt.
It knows the ledger; `episode_player` plays the job, and `celery_app` receives messages.
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
from rollq_worker.engine.pool import EnginePool
from rollq_worker.failures import Diverged, Drained, OtherWeights
from rollq_worker.process.attempts.attempt import Attempt
from rollq_worker.process.attempts.leases import Leases
from rollq_worker.process.episode_player import EpisodePlayer
from rollq_worker.process.incompatible_runs import AWAY_SKIP_S, SKIP_S, IncompatibleRuns
from rollq_worker.process.time_spent import TimeSpent
from rollq_worker.remote.waiting import CHECK_S
from rollq_worker.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)

WEIGHTS_PAUSE_S = 2.0
"""Seconds for which a message waits while no engine has new enough weights for its run. Then the
slot may play another run.
"""
LATER_S = 10.0
"""Seconds after which a job comes again that no worker can play now, so that other runs get the
slots meanwhile. More than constants.SENDING_S, because the confirmation of its last message may be
on its way.
"""

Summary = dict[str, Any]
"""Outcome of a message, for Flower and for metrics. rollq's own counts come from the ledger."""


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
        # of a bounded number of runs: a message may name any run, also an unknown one
        self.ledger = lru_cache(256)(lambda run: Ledger(connection, run))
        self.episodes = EpisodePlayer(settings, engine, tokenizer, name, models)
        self._retry = RetryLoop(wait=self._pause, relogin=True)
        self.incompatible_runs = IncompatibleRuns()
        self.ended: Counter[tuple[str, str, str]] = Counter()
        """Attempts by stop, class of failure, and the state of their job then."""
        self._counting = threading.Lock()

    def run(
        self, job_id: str, on_claim: Callable[[Attempt], object] = lambda attempt: None
    ) -> Summary:
        """Run the job if this worker can claim it. `on_claim` gets the attempt before it begins."""
        try:
            run, _, _ = parse_id(job_id)
        except ContractError as e:
            log.error("ignoring a message: %s", e)
            return {"stop": "ignored"}
        ledger = self.ledger(run)
        if self.incompatible_runs.skips(run):
            self._resend(ledger, job_id, LATER_S)
            return {"stop": "refused: left to other workers"}
        if not self._has_weights(run):
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
            return self._refused(ledger, job_id, claim)
        with self.leases.hold(ledger, claim) as attempt:
            on_claim(attempt)
            summary = self._run_attempt(attempt, claim)
        with self._counting:
            failure = summary.get("failure", "")
            self.ended[summary["stop"], failure, summary.get("then", "")] += 1
        return summary

    def _has_weights(self, run: str) -> bool:
        """True if no episode of the run waits for new enough weights. Else another one would only
        wait, too.
        """
        until = time.monotonic() + WEIGHTS_PAUSE_S
        while self.engine.awaits_weights(run):
            if time.monotonic() > until or self.draining.wait(random.uniform(0.5, 1.5)):
                return False
        return True

    def _refused(self, ledger: Ledger, job_id: str, refusal: Refusal) -> Summary:
        """The message is spent. The ledger sends the job again if another worker may play it."""
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
        ask = partial(
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
            return ask()

        return self._retry(claim)

    def _pause(self, seconds: float) -> None:
        if self.draining.wait(seconds):
            raise Drained("the worker is stopping")

    def _resend(self, ledger: Ledger, job_id: str, after_s: float = 0.0) -> None:
        call = partial(ledger.resend, job_id, after_s)
        self._hand_back(call, f"{job_id}: not handed back (%s); it is sent again later")

    def _run_attempt(self, attempt: Attempt, claim: Claim) -> Summary:
        job = claim.job
        started = time.monotonic()
        try:
            trajectory = self.episodes.play(attempt, claim)
            stats = count_tokens(trajectory, self.tokenizer.reencode)
            attempt.complete(trajectory, stats)
        except Fenced as e:
            return self._fenced(attempt, str(e))
        except Drained:
            return self._release(attempt)
        except Diverged as e:
            log.warning("%s: it begins again without its journal: %s", job.id, e)
            return self._release(attempt, restart=True)
        except OtherWeights as e:
            log.info("%s: it comes again in %g s", e, LATER_S)
            return self._release_for_later(attempt)
        except LedgerError as e:
            return self._give_back(attempt, e)
        except (UnknownSchema, ForOtherWorkers) as e:
            return self._leave_alone(attempt, e)
        except RolloutFailure as e:
            return self._fail(attempt, e)
        except ContractError as e:
            return self._fail(attempt, JobFailure(str(e)), traceback.format_exc())
        except BaseException as e:
            # A bug, a lack of memory or a panic in Rust code (which is no Exception) costs one
            # attempt, never this thread.
            log.exception("%s: attempt %d broke", job.id, attempt.number)
            return self._fail(
                attempt, WorkerFailure(f"{type(e).__name__}: {e}"), traceback.format_exc()
            )
        finally:
            self._leave_engines(job.id)
        return {
            "job": job.id,
            "stop": trajectory.stop,
            "reward": trajectory.reward,
            "turns": trajectory.turns,
            "tokens": len(trajectory.tokens),
            "seconds": round(time.monotonic() - started, 2),
        }

    def _leave_engines(self, job_id: str) -> None:
        for pool in self._pools:
            pool.end(job_id)

    def _fail(self, attempt: Attempt, failure: RolloutFailure, trace: str = "") -> Summary:
        if failure.__cause__ and not trace:
            trace = "".join(traceback.format_exception(failure.__cause__))
        reason = f"{failure}\n{trace}".strip()
        # a traceback says most at its end
        reason = reason[:200] + reason[200:][200 - LONGEST_REASON :]
        try:
            outcome = attempt.fail(failure.failure, reason)
        except Drained:
            return self._release(attempt)
        except Fenced as e:
            return self._fenced(
                attempt, f"{attempt.job.id}: its failure ({failure}) was not taken: {e}"
            )
        except LedgerError as e:
            return self._give_back(attempt, e)
        why = f"{failure.failure}: {failure}"
        log.warning("%s: attempt %d: %s (%s)", attempt.job.id, attempt.number, why, outcome)
        return {
            "job": attempt.job.id,
            "stop": "failed",
            "failure": failure.failure,
            "then": outcome,
            "why": why,
        }

    def _fenced(self, attempt: Attempt, reason: str) -> Summary:
        """Summary of an attempt that lost its lease, or whose thread was left behind for long."""
        if attempt.abandoned_why:
            return {"job": attempt.job.id, "stop": "abandoned", "why": attempt.abandoned_why}
        log.warning("%s", reason)
        return {"job": attempt.job.id, "stop": "fenced"}

    def _give_back(self, attempt: Attempt, error: LedgerError) -> Summary:
        """Give the job back at no cost: a key of its run is not as the ledger writes it."""
        log.error(
            "%s: attempt %d: refused by the ledger: %s", attempt.job.id, attempt.number, error
        )
        return self._release_for_later(attempt)

    def _leave_alone(self, attempt: Attempt, error: UnknownSchema | ForOtherWorkers) -> Summary:
        """Give the job back at no cost, because only another version of rollq can read its journal,
        or because only other workers have the file or the services of its environment.
        """
        skip_s = AWAY_SKIP_S if isinstance(error, ServiceAway) else SKIP_S
        self.incompatible_runs.record(attempt.job.run, str(error), skip_s)
        return self._release_for_later(attempt)

    def _release_for_later(self, attempt: Attempt) -> Summary:
        """Release the job, which is sent again in LATER_S seconds."""
        summary = self._release(attempt)
        self._resend(attempt.ledger, attempt.job.id, LATER_S)
        return summary

    def _release(self, attempt: Attempt, *, restart: bool = False) -> Summary:
        warning = f"{attempt.job.id}: not released (%s): its lease expires"
        released = self._hand_back(partial(attempt.release, restart=restart), warning)
        return {"job": attempt.job.id, "stop": "released" if released else "fenced"}

    def _hand_back(self, call: Callable[[], object], failed: str) -> bool:
        """True if the job is handed back."""
        try:
            call()
            return True
        except (LedgerError, *CONNECTION_ERRORS) as e:
            log.warning(failed, type(e).__name__)
            return False
