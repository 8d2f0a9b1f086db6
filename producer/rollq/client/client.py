"""The light client: submit jobs, take batches of finished groups, acknowledge them.

It shares only Redis with the workers. A restarted client continues: its state is in the ledger.
"""

from __future__ import annotations  # the types are imported only for type checkers

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from rollq.client.arguments import (
    Order,
    check_ahead,
    check_client,
    check_days,
    check_ids,
    check_wanted,
)
from rollq.client.closed import Closed
from rollq.errors import (
    ClientClosed,
    ContractError,
    FailureClass,
    FunctionError,
    LedgerError,
    SettingsError,
)
from rollq.job import NAME, Purpose
from rollq.ledger.constants import HOLD_S
from rollq.numbers import whole_number
from rollq.settings import Settings

if TYPE_CHECKING:
    from rollq.batch import Batch
    from rollq.client.consuming.consumer import Consumer
    from rollq.client.consuming.functions import Reward, Where
    from rollq.client.episodes import Episodes
    from rollq.client.evaluation import Evaluation
    from rollq.client.solve_rates import SolveRates
    from rollq.client.tracking import Tracker
    from rollq.job import Job
    from rollq.ledger.replies import DeadLetter, JobState, Published, Submission
    from rollq.trajectory import Trajectory

AHEAD = 256
"""Number of unacknowledged groups at which `submit` waits, so that unread results cannot fill
Redis.
"""


class Client:
    """One run, seen from the trainer's or the producer's side. Close it, or use it as a context
    manager.

    When Redis cannot be reached or takes no writes (out of memory, disk full), calls wait without
    end, or until the client is closed, and warn on the logger `rollq`. They raise
    redis.ConnectionError if no Redis has answered at this address within 5 s, and
    redis.AuthenticationError. `explain` neither waits nor raises these.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        run: str,
        broker_url: str | None = None,
        budgets: Mapping[FailureClass, int] | None = None,
        hold_s: float = HOLD_S,
    ) -> None:
        """The addresses default to ROLLQ_REDIS_URL and ROLLQ_BROKER_URL. Connects when first used.

        `budgets`: for each class, the number of failures that kills a job. The run's first
        submission pins them; a later one with other budgets raises SettingsError. `hold_s`: a
        consumer that is silent for that many seconds loses its batches. Raises SettingsError for a
        wrong address or value.
        """
        # Imported here: redis alone takes longer than all that a program needs to name this class.
        from rollq.client.producing.broker import Broker
        from rollq.client.producing.producer import Producer
        from rollq.client.tracking import Trackers
        from rollq.ledger.dead_letters import DeadLetters
        from rollq.ledger.ledger import Ledger
        from rollq.ledger.reader import LedgerReader
        from rollq.ledger.versions import Versions
        from rollq.servers.connection import connect
        from rollq.servers.retry import RetryLoop

        check_client(run, hold_s)
        settings = Settings.from_env(url, broker_url)
        self.run = run = str.__str__(run)  # the text of an enum's str() may be another
        connection = connect(settings.redis_url, patience_s=0)
        self._ledger = Ledger(connection, run)
        self._reader = LedgerReader(connection, run)
        self._versions = Versions(connection, run)
        self._dead_letters = DeadLetters(connection, run)
        self._hold_s = hold_s
        self._broker = Broker(settings.broker_url)
        self._open_children: WeakSet[Consumer | Evaluation | Episodes] = WeakSet()
        self._closing = Event()
        self._warned_of_unknown_run = False
        self._retry = RetryLoop(wait=self._pause)
        self._trackers = Trackers(self._reader, self._retry)
        self._producer = Producer(self._ledger, self._broker, dict(budgets or {}), self._pause)

    @property
    def broker_error(self) -> str | None:
        """The exception type with which the broker refused messages; the workers' reapers send them
        in its place.
        """
        return self._broker.error

    def submit(
        self, jobs: Iterable[Job], *, ahead: int = AHEAD, source: str | None = None
    ) -> Submission:
        """Submits jobs group by group. The jobs of one group must follow one another.

        A lone sample 0 stands for its whole group; `run` and `group` are filled in. Waits while
        `ahead` groups are unacknowledged, over all producers of the run, and asks for the next job
        only when there is room. Submitting a known job again changes nothing. `source` names a
        sequence of jobs that is always the same: after a restart, the groups that were submitted
        before are skipped.

        When Redis comes back without the last groups, they are submitted again: from memory, or by
        reading `jobs` again if it has a source and is not an iterator. Raises Gap when neither
        reaches back far enough: submit the source again. Raises JobConflict, ContractError, or
        LedgerError when the run is sealed. Groups that were submitted before the error stay
        submitted.

        Where the worker's package is installed, ContractError also refuses what no worker can play,
        and the log warns of an environment, split or task that this machine does not know.
        """
        check_ahead(ahead)
        if source is not None and not (isinstance(source, str) and NAME.fullmatch(source)):
            raise ContractError(f"source {source!r} must match {NAME.pattern}")
        return self._producer.submit(jobs, ahead, source)

    def refill(self, jobs: Iterable[Job], *, times: int = 1, ahead: int = AHEAD) -> Submission:
        """Waits until the groups of these jobs are settled, and submits a fresh one in place of
        each dropped one.

        The replacement of group `g` is `g.r1`, with another seed; if that is dropped too, `g.r2`,
        and so on up to `times`. Safe to repeat. Raises what `submit` raises.
        """
        check_ahead(ahead)
        whole_number("times", times, at_least=0)
        return self._producer.refill(jobs, times, ahead)

    def seal(self) -> None:
        """Declares the run complete: consumers get the short last batch, then their loops end.

        Groups of this client that Redis has lost are submitted again first. Raises Gap when they
        are too many: submit their source again.
        """
        self._producer.seal()

    def pin_tokenizer(self, tokenizer_hash: str, template_hash: str) -> None:
        """Pins the tokenizer and the chat template that play the run, so that its first worker
        decides nothing.

        The hashes are those of `rollq_worker.tokens.tokenizer.Tokenizer`. Raises SettingsError when
        the run has others, and for a value that is not a hash.
        """
        for text in (tokenizer_hash, template_hash):
            if not (isinstance(text, str) and text):
                raise SettingsError(
                    f"the tokenizer and the chat template are pinned by their hashes, not {text!r}"
                )
        self._producer.pin(
            "tokenizer", lambda: self._ledger.pin_tokenizer(tokenizer_hash, template_hash)
        )

    def forget_after(self, days: float) -> None:
        """Forgets acknowledged groups after that many days. Without it, their ids are known as long
        as the run is.

        A group that is submitted again later is a new one. Raises SettingsError.
        """
        check_days(days)
        self._producer.pin("forget_after", lambda: self._ledger.forget_after(days))

    def limit_staleness(
        self, groups_per_batch: int, max_staleness: int, max_running: int | None = None
    ) -> None:
        """Bounds the staleness of training: new groups for training wait in `submit` while they
        would be trained on more than `max_staleness` steps after they began. 0 is strictly on
        policy. Call it before the first submission.

        A training step takes one batch of `groups_per_batch` groups, in the order of submission,
        and ends with `publish`. `max_running`: most groups that are being played at a time.
        Evaluation is not bounded. The numbers are pinned for the run: other ones raise
        SettingsError.
        """
        bound = partial(
            self._versions.limit_staleness, groups_per_batch, max_staleness, max_running
        )
        self._producer.pin("admission", bound)

    def publish(self, step: int, weight_version: str | None = None) -> None:
        """Records that the engines serve the policy of this training step. Call it once they do.

        `weight_version`: their name of it, by which a token's version becomes a step (default: the
        step as text). The first policy is step 0, and each batch trained on makes the next. A step
        that is not above the published one says that the trainer went back to a checkpoint. When
        Redis loses the publication, this client says it again. Raises ContractError for a wrong
        step or version, SettingsError when it was published for another step.
        """
        from rollq.client.producing.producer import PolicyPublication

        version = str(step) if weight_version is None else weight_version
        self._producer.publish(PolicyPublication(self._versions, step, version))

    def published(self) -> Published | None:
        """The policy that was published last; None when none was."""
        return self._retry(self._versions.published)

    def batches(
        self,
        groups: int,
        *,
        purpose: Purpose = Purpose.TRAIN,
        timeout: float | None = None,
        exact: bool = False,
        order: Order = "ready",
        name: str | None = None,
        step: int | None = None,
        where: Where | None = None,
        reward: Reward | None = None,
        extras: Sequence[str] = (),
        track: str | Tracker | None = None,
    ) -> Iterator[Batch]:
        """Batches of `groups` groups, oldest first, until a sealed run has no more. The last batch
        may be short.

        This consumer holds a batch until `batch.ack()`. Groups that it leaves unacknowledged are
        handed out again when the client is closed, or a minute after the loop ends; with a `name`,
        at once to the next process that uses it. A batch has groups of one purpose only, so a
        trainer gets no eval groups. Keep `groups` at or below the producer's `submit(ahead=)`, or
        the two wait for each other. `timeout` (in seconds) and `exact` are those of
        `Consumer.next`, the others those of `consumer`.
        """
        check_wanted(groups, timeout)
        consumer = self.consumer(
            purpose,
            order=order,
            name=name,
            step=step,
            where=where,
            reward=reward,
            extras=extras,
            track=track,
        )
        return self._batches(consumer, groups, timeout, exact)

    def consumer(
        self,
        purpose: Purpose = Purpose.TRAIN,
        *,
        order: Order = "ready",
        name: str | None = None,
        step: int | None = None,
        where: Where | None = None,
        reward: Reward | None = None,
        extras: Sequence[str] = (),
        track: str | Tracker | None = None,
    ) -> Consumer:
        """A consumer for your own loop, which may ask for another number of groups each time. Close
        it at the end.

        `order`: `ready` hands out what is finished; `submitted` hands out no group before an
        unfinished one that was submitted earlier.

        `name`: the consumer goes on where the last process with this name stopped. It takes over
        its unacknowledged batches at once, in order and as they were, and that process gets NotHeld
        from then on. `step`: the step of the last batch that the trainer's checkpoint holds.
        Batches up to it are acknowledged; then come those that were trained on after the
        checkpoint, and then new groups. Raises LedgerError when a later batch was acknowledged
        already.

        `where`: the filter of dynamic sampling: `"unequal_rewards"`, an import path
        `"module:function"`, or a function of a `Group`. A group for which it is False is skipped
        under the filter's name, and the batch is filled up, so it is short only at the end of a
        sealed run. `reward`: an import path or a function of a `Trajectory`. Rewards and advantages
        of groups and batches are its numbers then; `trajectory.reward` stays the environment's.
        When one of them fails, `next` raises FunctionError, and the next call gets the same groups.
        Raises SettingsError for a function that is not there.

        `extras`: names of the arrays to fetch into `trajectory.extras`, where an episode has them.
        Raises ContractError unless it is a list of names.

        `track`: a tracker that is told of each batch, `"NAME[:PROJECT[:ROLLOUTS]]"` or a `Tracker`
        (docs/trackers.md).
        """
        from rollq.client.consuming.consumer import Consumer
        from rollq.ledger.deliveries import Deliveries

        if purpose not in list(Purpose):
            raise ContractError(f"purpose must be {' or '.join(Purpose)}, not {purpose!r}")
        deliveries = Deliveries(self._ledger.redis, self.run)
        consumer = Consumer(
            deliveries,
            Purpose(purpose),
            self._hold_s,
            order=order,
            name=name,
            step=step,
            where=where,
            reward=reward,
            extras=extras,
            republish=self._producer.republish,
            pause=self._pause,
            tracking=self._trackers.use(track),
        )
        self._open_children.add(consumer)
        return consumer

    def episodes(self, keep_steps: int) -> Episodes:
        """Episodes by their jobs, for a trainer that asks for each one by itself: `await
        episodes.play(job, step)`.

        Each job is a group of its own. It is acknowledged when this process asks for one of a step
        more than `keep_steps` later. Use no consumer beside it.
        """
        from rollq.client.episodes import Episodes

        episodes = Episodes(self._ledger, self._producer, keep_steps)
        self._open_children.add(episodes)
        return episodes

    def evaluate(
        self,
        tasks: Iterable[Job],
        k: int,
        version: str | None = None,
        *,
        name: str | None = None,
        track: str | Tracker | None = None,
    ) -> Evaluation:
        """Plays each task k times in the background, and keeps the result with the run.

        It is an evaluation of `version`, of the version that the tasks are pinned to
        (`Job.weight_version`), or of the one that is published now. Without a pin, tokens that
        other weights sampled are counted in `Result.other_versions`. `tasks` are jobs; their group,
        sample, size and purpose are filled in. The groups have purpose eval: no trainer's loop
        meets them, and they take no room from training. `name` (default: the version) tells
        evaluations of one version with different tasks apart. `track`: as in `consumer`; it is told
        of the result at the version's step.

        The same call after a restart goes on where it was, and returns the stored result once it is
        complete. Raises ContractError for wrong tasks, `k`, version or name, SettingsError when no
        version was published and none is given. A sealed run takes no new groups, so
        `Evaluation.result` raises LedgerError then.
        """
        from rollq.client.evaluation import begin

        tracking = self._trackers.use(track)
        evaluation = begin(
            self._reader, self._producer, self.published, list(tasks), k, version, name, tracking
        )
        self._open_children.add(evaluation)
        return evaluation

    def solve_rates(self) -> SolveRates:
        """Solve rates of tasks, for a `rollq.training.mixture.Mixture` that rests solved ones."""
        from rollq.client.solve_rates import SolveRates

        return SolveRates(self._ledger, self._producer, self._retry)

    def trajectory(self, job_id: str, attempt: int | None = None) -> Trajectory:
        """A job's episode as far as it was played. The episode of a dead job ends with its failure.

        With `attempt`: the journal that was set aside under that attempt. Raises LedgerError when
        the job is unknown or was acknowledged.
        """
        return self._retry(lambda: self._reader.trajectory(job_id, attempt))

    def job(self, job_id: str) -> JobState:
        """A job's state. Raises LedgerError when it is unknown."""
        state = self._retry(lambda: self._reader.job(job_id))
        if state is None:
            raise LedgerError(f"job {job_id} is unknown: run {self.run} has no such job")
        return state

    def group_states(self, groups: Sequence[str]) -> list[str]:
        """The state of each group: open, ready, held, acked or dropped; empty for one that is
        unknown.
        """
        return self._retry(lambda: self._reader.group_states(groups))

    def explain(self, wanted: int) -> str:
        """Explains the wait for so many groups, with a remedy; empty while they are only being
        played.
        """
        from rollq.client.waits import explain

        return explain(self._reader, Purpose.TRAIN, wanted=wanted)

    def set_engines(self, name: str, urls: Iterable[str]) -> None:
        """Makes these the engines of workers that were started with `--engine redis:NAME`, in every
        run. Raises SettingsError for a wrong name or address.
        """
        from rollq.ledger.workers.engine_addresses import check_addresses, set_addresses

        addresses = check_addresses(name, urls)
        self._retry(lambda: set_addresses(self._ledger.redis, name, addresses))

    def dead(self, limit: int | None = 1000) -> list[DeadLetter]:
        """The jobs that ended without a grade, the latest first."""
        return self._retry(lambda: self._reader.dead(limit))

    def requeue(self, job_ids: Iterable[str]) -> None:
        """Queues dead jobs again, without their failures. Groups that were dropped for them come
        back.

        Raises LedgerError for the first job that is not dead, or whose group is handed out without
        it.
        """
        for job_id in check_ids(job_ids):
            self._retry(partial(self._dead_letters.requeue, job_id, uuid.uuid4().hex))

    def cancel(
        self, job_ids: Iterable[str] | None = None, *, group: str | None = None, run: bool = False
    ) -> None:
        """Ends queued and running jobs as dead, of class cancelled: these jobs, the unfinished
        members of a group, or those of the whole run, which takes no more groups then.

        Workers stop playing them within seconds. A group is then ready if it has `min_viable`
        graded members, else dropped. Raises LedgerError for the first of `job_ids` that has already
        ended, and for an unknown group; ContractError when nothing is named.
        """
        if job_ids is None and group is None and not run:
            raise ContractError(
                f"run {self.run}: cancel what? Give ids of jobs, group=, or run=True for all of it"
            )
        for job_id in check_ids(job_ids or ()):
            self._retry(partial(self._dead_letters.cancel, job_id))
        if group is not None:
            self._retry(lambda: self._dead_letters.cancel_group(group))
        if run:
            self._retry(self._ledger.seal)
            for name in self._retry(self._dead_letters.open_groups):
                self._retry(partial(self._dead_letters.cancel_group, name))

    def stats(self) -> dict[str, Any]:
        """Counts of jobs and groups by state, and totals since the run began (docs/ledger.md). All
        are 0 for a run that is not `known`, and the log says so once.
        """
        stats = self._retry(self._reader.stats)
        if not stats["known"] and not self._warned_of_unknown_run:
            from rollq.client.waits import warn_of_unknown_run

            self._warned_of_unknown_run = True
            self._retry(lambda: warn_of_unknown_run(self._reader))
        return stats

    def close(self) -> None:
        """Closes its consumers, evaluations and trackers too. Later calls raise ClientClosed."""
        if self._closing.is_set():
            return
        self._closing.set()
        for child in list(self._open_children):
            child.close()
        self._trackers.close()
        self._producer.close()
        self._broker.close()
        self._ledger.redis.close()
        closed: Any = Closed(self.run)
        self._ledger = self._reader = self._versions = self._dead_letters = closed
        self._producer = closed

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ClientClosed(f"the client of run {self.run} is closed: make another")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _batches(
        self, consumer: Consumer, groups: int, timeout: float | None, exact: bool
    ) -> Iterator[Batch]:
        try:
            while batch := consumer.next(groups, timeout, exact=exact):
                yield batch
        except FunctionError:  # nobody can ask this consumer again
            consumer.give_back_unread()
            raise
        finally:
            consumer.stop_renewing()
