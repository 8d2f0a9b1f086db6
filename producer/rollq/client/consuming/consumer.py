"""One consumer of a run: takes finished groups of one purpose and holds them until it acknowledges
them.

A background thread renews its holds in Redis. When the consumer or its process ends, the holds run
out, and the groups go to another consumer. A consumer with a name is succeeded by the next process
that opens the name: it takes over the holds at once, with the same batches in the same order.
"""

import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from rollq.batch import Batch, Group
from rollq.client.arguments import Order, check_consumer, check_wanted
from rollq.client.consuming.batch_wait import BatchWait
from rollq.client.consuming.functions import Filter, Reward, RewardFunction, Where
from rollq.client.consuming.hold_renewal import HoldRenewal
from rollq.client.consuming.selection import Selection, UnreadableJob
from rollq.client.tracking import Tracking
from rollq.client.waits import explain
from rollq.errors import (
    ClientClosed,
    ContractError,
    FunctionError,
    LedgerError,
    MissingGroups,
    NotHeld,
    PullTimeout,
)
from rollq.job import Purpose
from rollq.ledger.constants import HOLD_S, STALE
from rollq.ledger.deliveries import Deliveries, Opened, Taken, named_session
from rollq.ledger.job_extras import check_names
from rollq.ledger.reader import LedgerReader
from rollq.ledger.replies import TakenGroup
from rollq.ledger.versions import Versions
from rollq.servers.retry import RetryLoop, try_briefly
from rollq.training.staleness import staleness, version_tokens

log = logging.getLogger("rollq")


class Consumer:
    """One consumer, for one thread. It holds what it took until `close`, the end of its `with`
    block or the end of its process.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        purpose: Purpose,
        hold_s: float = HOLD_S,
        *,
        order: Order = "ready",
        name: str | None = None,
        step: int | None = None,
        where: Where | None = None,
        reward: Reward | None = None,
        extras: Sequence[str] = (),
        republish: Callable[[int], int | None] = lambda published: None,
        tracking: Tracking | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`Client.consumer` says what the arguments mean. With a name, asks Redis. Raises
        ContractError, SettingsError for a function that is not there, and LedgerError when a step
        after `step` is acknowledged already.

        `republish` gets the number of publications that the ledger has, with each reply. It returns
        the published step when Redis had lost it.
        """
        check_consumer(order, name, step)
        check_names(extras)
        self._deliveries = deliveries
        self._reader = LedgerReader(deliveries.redis, deliveries.run)
        self._versions = Versions(deliveries.redis, deliveries.run)
        self._republish = republish
        self._tracking = tracking
        self._purpose = purpose
        self._hold_s = hold_s
        self._ordered = order == "submitted"
        self._sleep = pause
        self._retry = RetryLoop(wait=self._pause)
        self._selection = Selection(
            lambda ids: self._waiting.in_time(lambda: self._reader.read(ids, extras)),
            None if where is None else Filter.of(where),
            None if reward is None else RewardFunction.of(reward),
        )
        self._filling: int | None = None
        """The step of the batch that a filter left incomplete."""
        self._session = uuid.uuid4().hex[:16]
        self._owner = ""
        self._step = 0
        self._closed = False
        self._process = os.getpid()
        self._takeover: deque[int] = deque()
        """Steps of batches that this consumer took over and has not handed on yet."""
        self._batches: dict[int, list[str]] = {}
        """Ids of the groups of the batches that are not acknowledged, by step."""
        self._rejected: set[int] = set()
        """Steps of the batches that were given back."""
        if name is not None:
            name = str.__str__(name)  # the text of an enum's str() may be another
            opened = take_over(deliveries, purpose, name, hold_s, step, self._retry)
            self._session = named_session(purpose, name)
            self._owner = opened.owner
            self._step = opened.next
            self._takeover.extend(opened.steps)
            is_last = opened.filling == opened.next - 1
            if opened.filling is not None and is_last and opened.filling != step:
                self._filling = self._step = opened.filling
        self._waiting = BatchWait(deliveries, self._session, hold_s, self._explain, self._retry)
        self._holds = HoldRenewal(self._renew, hold_s)
        for taken_over in self._takeover:
            self._holds.set(self._token(taken_over), 0)

    def _token(self, step: int) -> str:
        return f"{self._session}/{step}"

    def _renew(self, tokens: Sequence[str]) -> Sequence[str]:
        return self._deliveries.renew_holds(tokens, self._hold_s, self._purpose, owner=self._owner)

    @property
    def held(self) -> int:
        """Groups that this consumer took and has not acknowledged, skipped or rejected."""
        return self._holds.groups

    def next(
        self, groups: int, timeout: float | None = None, *, exact: bool = False
    ) -> Batch | None:
        """The next batch of that many groups, or of fewer at the end of a sealed run; None when no
        more can come.

        A consumer that took over a name gets the unacknowledged batches first, as they were,
        whatever `groups` says. With `exact`, no batch is ever short: raises MissingGroups, and
        takes nothing, when no group is being played and too few are ready. Raises PullTimeout when
        the batch is not ready within `timeout` seconds (None waits without end; up to 20 s later
        while Redis is away), and FunctionError when a filter or a reward function fails. Another
        call then goes on with the batch. Raises NotHeld when another process has opened the name
        or this one was forked, and UnknownSchema, which touches nothing, when another version of
        rollq wrote a group. Raises ContractError for other numbers than those.
        """
        check_wanted(groups, timeout)
        self._refuse_fork()
        wait = self._waiting
        wait.begin(groups, timeout)
        while True:
            self._refuse_closed()  # another thread may close it meanwhile
            taken, step = self._take(groups, wait.since, exact)
            if taken.groups:
                wait.end(taken)
                batch = self._batch(step, taken)
                if batch is None:
                    continue
                if self._tracking:
                    self._tracking.add(batch)
                return batch
            if self._was_delivered(step):  # the hold ran out, and another consumer has its groups
                self._takeover.popleft()
                continue
            if taken.unread:
                continue
            if taken.over:
                self._takeover.clear()  # it has no batch, or the filter kept nothing of it
                return None
            self._wait(taken, groups, timeout, exact)

    def _wait(self, taken: Taken, groups: int, timeout: float | None, exact: bool) -> None:
        """Waits until the next take may have groups. Raises MissingGroups, PullTimeout."""
        wait = self._waiting
        run = self._deliveries.run
        if exact and wait.is_in_vain(taken, groups - len(self._selection)):
            raise missing_groups(run, taken, groups, len(self._selection))
        wait.since = min(wait.since or taken.at, taken.at)  # Redis's clock may be set back
        if time.monotonic() >= wait.deadline:
            why = wait.time_out()
            raise PullTimeout(late(run, taken, groups, timeout or 0.0, self.held, why))
        wait.block(taken, exact)

    def _was_delivered(self, step: int) -> bool:
        """True for a batch that the name's previous owner had delivered."""
        return step in self._takeover and step != self._filling

    def _take(self, groups: int, since: float, exact: bool) -> tuple[Taken, int]:
        """The reply and the batch's step."""
        step = self._takeover[0] if self._takeover else self._step
        again = self._was_delivered(step)
        take = partial(
            self._deliveries.take,
            groups,
            self._token(step),
            self._hold_s,
            self._purpose,
            owner=self._owner,
            since=since,
            ordered=self._ordered,
            exact=exact,
            again=again,
            wake=not again,
            fill=step == self._filling,
        )
        taken = self._waiting.in_time(take)
        if taken.published is not None:
            republished = self._republish(taken.published)
            if republished is not None:
                taken = replace(taken, policy_step=republished)
        return taken, step

    def _explain(self, groups: int) -> str:
        return explain(self._reader, self._purpose, wanted=groups - len(self._selection))

    def _batch(self, step: int, taken: Taken) -> Batch | None:
        """The batch of the taken groups; None when another take has to come first.

        That is so when the filter does not keep all of them, when one has a token that is beyond
        the run's bound on staleness or of unknown weights, and when a trajectory cannot be read:
        then its job is rejected, and no group of the batch is held any more.
        """
        unwanted = self._read(step, taken.groups)
        if unwanted is None:
            return None
        if unwanted:
            self._leave_out(step, unwanted, self._selection.reason, taken.groups)
            return None
        groups = self._selection.groups(taken.groups)
        names = version_tokens(trajectory for group in groups for trajectory in group.trajectories)
        version_steps = self._waiting.in_time(lambda: self._versions.steps(sorted(names)))
        stale = [] if self._was_delivered(step) else _stale(groups, taken, version_steps)
        if stale:
            self._selection.leave_out(stale)
            self._leave_out(step, stale, STALE, taken.groups)
            return None
        self._hand_out(step, groups)
        return Batch(
            step=step,
            groups=groups,
            on_ack=partial(self._ack, step, list(self._batches[step])),
            on_skip=partial(self._skip, step),
            on_reject=partial(self._reject, step),
            policy_step=taken.policy_step,
            version_steps=version_steps,
        )

    def _read(self, step: int, groups: Sequence[TakenGroup]) -> list[str] | None:
        """Ids of the groups that the filter does not keep; None when one cannot be read."""
        token = self._token(step)
        self._holds.set(token, len(groups))
        try:
            return self._selection.unwanted(groups, redelivered=self._was_delivered(step))
        except UnreadableJob as e:
            with suppress(NotHeld):  # another consumer holds it by now
                self._reject(step, e.job_id, str(e))
            return None
        except (FunctionError, PullTimeout):
            raise  # the hold stays, so that the next call gets the same groups
        except BaseException:
            self._holds.drop(token)  # no caller gets this batch, so it must be handed out again
            raise

    def _hand_out(self, step: int, groups: Sequence[Group]) -> None:
        self._selection.clear()
        with suppress(ValueError):
            self._takeover.remove(step)
        self._step = max(self._step, step + 1)
        if self._filling == step:  # else a process before left a later batch incomplete
            self._filling = None
        self._rejected.discard(step)
        self._batches[step] = [group.id for group in groups]

    def _leave_out(
        self, step: int, names: Sequence[str], reason: str, groups: Sequence[TakenGroup]
    ) -> None:
        """The batch does not keep these of its groups: it is filled up with others."""
        token = self._token(step)
        self._filling = step
        for name in names:
            skip = partial(
                self._deliveries.skip, token, name, reason, owner=self._owner, filling=True
            )
            with suppress(NotHeld):  # the next take finds out what is still held
                self._waiting.in_time(skip)
        left = len(groups) - len(names)
        if left:
            self._holds.set(token, left)
        else:
            self._holds.drop(token)

    def ack(self, up_to: int) -> None:
        """Acknowledges all batches of this consumer up to and with that step, for example once a
        checkpoint holds them.

        Safe to repeat. Raises NotHeld when a hold was lost; the other batches are acknowledged.
        Raises ContractError for a step that no batch has had yet.
        """
        self._refuse_closed()
        if up_to >= self._step and up_to not in self._takeover:
            raise ContractError(
                f"run {self._deliveries.run}: no batch of this consumer has had step {up_to} "
                f"yet: the next is {self._step}. To say what a checkpoint holds, open the "
                f"consumer with step={up_to}"
            )
        lost: NotHeld | None = None
        for step in sorted({*self._batches, *self._takeover}):
            if step > up_to:
                break
            try:
                self._ack(step, self._batches.get(step, []))
            except NotHeld as e:
                lost = lost or e
        if lost:
            raise lost

    def _ack(self, step: int, groups: Sequence[str]) -> None:
        self._refuse_closed()
        if step in self._rejected:
            raise NotHeld(
                f"run {self._deliveries.run}: batch {step} was rejected: its groups "
                "are handed out again"
            )
        try:
            self._retry(lambda: self._deliveries.ack(self._token(step), groups, owner=self._owner))
        except LedgerError:  # a group of the batch is lost or damaged
            self._forget(step)  # else its other groups would be held for ever
            raise
        self._forget(step)

    def _skip(self, step: int, group: str, reason: str) -> None:
        self._refuse_closed()
        self._retry(
            lambda: self._deliveries.skip(self._token(step), group, reason, owner=self._owner)
        )
        left = [name for name in self._batches.get(step, []) if name != group]
        if left:
            self._batches[step] = left
            self._holds.set(self._token(step), len(left))
        else:
            self._forget(step)

    def _reject(self, step: int, job_id: str, reason: str) -> None:
        self._forget(step)
        self._selection.clear()
        self._rejected.add(step)
        self._retry(
            lambda: self._deliveries.reject(self._token(step), job_id, reason, owner=self._owner)
        )
        log.error("a finished job cannot be used and is dead-lettered: %s", reason)

    def _forget(self, step: int) -> None:
        self._holds.drop(self._token(step))
        self._batches.pop(step, None)
        with suppress(ValueError):
            self._takeover.remove(step)

    def close(self) -> None:
        """Gives back what is held, so that other consumers get it now. The batches of a name stay,
        for the next process that opens it. A closed consumer refuses to take or acknowledge
        anything. In a forked process this is a copy, whose batches are the parent's.
        """
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._process:
            return
        left = self._holds.close()
        if left and not self._owner:
            self._give_back(left)
        self._flush_tracking()

    def _give_back(self, tokens: Sequence[str]) -> None:
        if not try_briefly(partial(self._deliveries.give_back, tokens, self._purpose)):
            log.warning(
                "run %s: Redis did not answer a consumer that closes: others get its groups once "
                "its hold of %g s has run out",
                self._deliveries.run,
                self._hold_s,
            )

    def give_back_unread(self) -> None:
        """Gives back the groups of a batch that was taken and not handed out. A name keeps them."""
        if not self._owner:
            token = self._token(self._step)
            self._holds.drop(token)
            self._selection.clear()
            self._give_back([token])

    def stop_renewing(self) -> None:
        """Stops renewing holds. The last batch may still be acknowledged until its hold has run
        out.
        """
        self._holds.close()
        self._flush_tracking()

    def _flush_tracking(self) -> None:
        if self._tracking:
            self._tracking.flush()

    def _pause(self, seconds: float) -> None:
        self._refuse_closed()
        self._sleep(seconds)

    def _refuse_closed(self) -> None:
        if self._closed:
            kept = "its name keeps its batches" if self._owner else "its groups went to others"
            raise ClientClosed(f"run {self._deliveries.run}: this consumer is closed, and {kept}")

    def _refuse_fork(self) -> None:
        """A forked process would get the batches that its parent gets, under the same holds."""
        if os.getpid() != self._process:
            raise NotHeld(
                f"run {self._deliveries.run}: this consumer is that of the process which was "
                "forked: make one in each process"
            )

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def take_over(
    deliveries: Deliveries,
    purpose: Purpose,
    name: str,
    hold_s: float,
    step: int | None,
    retry: RetryLoop,
) -> Opened:
    """Opens the name, and acknowledges the batches up to `step`, which a checkpoint holds. `steps`
    are the others.
    """
    text = uuid.uuid4().hex[:16]
    opened: Opened = retry(lambda: deliveries.open(name, purpose, text, hold_s, step))
    left = []
    for held in opened.steps:
        if step is not None and held <= step:
            token = f"{named_session(purpose, name)}/{held}"
            retry(partial(deliveries.ack, token, owner=opened.owner))
        else:
            left.append(held)
    if 0 < opened.next_in_ledger < opened.next:
        log.warning(
            "run %s: the checkpoint of consumer %s holds step %d, and the ledger has only %d "
            "batches. Redis has lost its last writes, or this is another run: groups of the steps "
            "in between may come again",
            deliveries.run,
            name,
            step,
            opened.next_in_ledger,
        )
    return replace(opened, steps=left)


def _stale(groups: Sequence[Group], taken: Taken, version_steps: Mapping[str, int]) -> list[str]:
    """Ids of the groups beyond the run's bound on staleness, or with tokens of unknown weights."""
    bound = taken.max_staleness
    if bound is None:
        return []
    stale = []
    for group in groups:
        age = staleness(group.trajectories, taken.policy_step, version_steps).max
        if age is None or age > bound:
            stale.append(group.id)
    return stale


def missing_groups(run: str, taken: Taken, groups: int, kept: int) -> MissingGroups:
    """The error of an exact batch that stays short; `kept` of its groups are held already."""
    ready = taken.ready + kept
    missing = groups - ready
    remedy = f"Submit {missing} more: `Client.refill` replaces the dropped ones. Then ask again"
    if taken.sealed:
        remedy = f"The run is sealed and takes no more groups: ask for at most {ready}"
    dropped = f"{taken.dropped} dropped"
    if taken.dropped:
        dropped += " (`rollq jobs list` says why)"
    error = MissingGroups(
        f"run {run}: {missing} of {groups} groups missing: {ready} ready, none being "
        f"played, {dropped}. {remedy}."
    )
    error.missing = missing
    error.ready = ready
    error.dropped = taken.dropped
    return error


def late(run: str, taken: Taken, groups: int, timeout: float, held: int, why: str) -> str:
    """The text of a timeout. `held`: groups that the consumer holds itself; `why`: the explanation
    of its wait.
    """
    text = (
        f"run {run}: no {groups} groups were ready within {timeout:g} s: {taken.ready} ready, "
        f"{taken.open} open, {taken.others + held} held"
    )
    return f"{text}; {why.removeprefix(f'run {run}: ')}" if why else text
