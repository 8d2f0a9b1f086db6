"""Conditions under which a run waits until a person does something, each with its remedy.

Pure: it judges a snapshot of the fleet. Producers, consumers, and people who look on get the same
words. Ordinary waits have none: `rollq top` and `rollq stats --late` show what episodes wait for.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from rollq.job import QUEUE, Purpose
from rollq.ledger.constants import LEASE_S
from rollq.ledger.replies import Standing
from rollq.ledger.workers.live_workers import (
    AWAY,
    MODEL_AWAY,
    OUTDATED,
    PAUSED,
    READY,
    SILENT_S,
    STALLED,
    LiveWorker,
)
from rollq.snapshot.fleet import FleetSnapshot
from rollq.snapshot.run import RunSnapshot

LATE_S = 10.0
"""Seconds after which a job's message is late. The reaper sends once a second."""
NAMED = 3
"""Most workers or engines that a text names."""
NAMED_RUNS = 5
"""Most runs that a text names."""
GO_ON = (
    "if no update is under way, repeat the `rollq engines sync` that failed, or send it `POST "
    "/continue_generation` (body `{}`)"
)
ENGINE_REMEDIES = {
    AWAY: "is away: start it, or take it off the list of engines (`--engine`)",
    STALLED: (
        "has requests and shows no progress: wait where it computes long prompts on a CPU, else "
        f"start it again; where it may only be paused (old SGLang does not say so), {GO_ON}"
    ),
    PAUSED: f"is paused, as for new weights: {GO_ON}",
    OUTDATED: (
        "serves weights that are older than what a run has published, or others than those that "
        "jobs are pinned to, or lacks a run's adapter: load the right ones (`rollq engines sync`), "
        "or publish its own under the name that it has for them"
    ),
}
"""Remedies by the state of an engine that generates nothing."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run, as somebody sees it who waits for groups of one purpose, or who only looks on."""

    fleet: FleetSnapshot
    run: RunSnapshot
    purpose: Purpose = Purpose.TRAIN
    asks_for: int = 0
    """Groups that a consumer asks for. 0 if it does not say."""
    ahead: int = 0
    """Number of unacknowledged groups at which a producer waits. 0 if it does not say."""

    @property
    def name(self) -> str:
        return self.run.run

    @property
    def groups(self) -> Standing:
        return self.run.standings[self.purpose]

    @property
    def other_groups(self) -> int:
        """Groups of the other purposes that are not acknowledged."""
        others = [groups for each, groups in self.run.standings.items() if each != self.purpose]
        return sum(groups.unacknowledged for groups in others)

    @property
    def is_full(self) -> bool:
        """True if admission lets no group in."""
        admission = self.groups.admission
        return admission is not None and admission.capacity <= 0

    @property
    def limit(self) -> int:
        """Unacknowledged groups at which a producer waits now. 0 if none waits for them."""
        if self.is_full and self.groups.unacknowledged < self.ahead:
            return self.groups.full or 0  # it waits for admission
        return self.ahead or self.groups.full or 0

    @property
    def wanted(self) -> int:
        """Groups that a consumer cannot go on without. 0 if none waits. One that has the batch of
        its step, and asks for a part of the next one, reads ahead as asynchronous trainers do.
        """
        groups = self.groups
        admission = self.groups.admission
        if self.asks_for:
            return self.asks_for
        if admission and groups.held and groups.wanted < admission.groups_per_batch:
            received = groups.held + admission.trained
            if received >= (admission.step + 1) * admission.groups_per_batch:
                return 0
        return groups.wanted

    @property
    def is_played(self) -> bool:
        """True if jobs must be played before the wait can end."""
        groups = self.groups
        if self.wanted and self.wanted <= groups.ready:
            return False
        return bool(groups.open and (groups.queued or groups.leased))

    @cached_property
    def serving(self) -> Sequence[LiveWorker]:
        """The live workers that take jobs from the queues of the run's jobs."""
        queues = set(self.run.queues)
        return [
            worker for worker in self.fleet.workers if not queues or queues & set(worker.queues)
        ]

    @cached_property
    def misfits(self) -> Mapping[str, str]:
        """Serving workers that cannot play the run all the same, with reason and remedy."""
        reasons = {}
        for worker in self.serving:
            left_alone = dict(worker.left_alone).get(self.name, "")
            if not worker.plays(self.run.tokenizer, self.run.template):
                reasons[worker.name] = (
                    "it has another tokenizer or chat template than the run: start it with the "
                    "run's `--tokenizer` and `--template`"
                )
            elif left_alone:
                reasons[worker.name] = left_alone.rstrip(".")
        return reasons

    @cached_property
    def able(self) -> Sequence[LiveWorker]:
        """Serving workers that can play the run."""
        return [worker for worker in self.serving if worker.name not in self.misfits]

    @property
    def silent(self) -> Mapping[str, float]:
        """Seconds since workers were heard of that may be dead."""
        silent = {worker.name: worker.age_s for worker in self.able if worker.age_s >= SILENT_S}
        return {**self.fleet.lost, **silent}

    @cached_property
    def engine_states(self) -> Mapping[str, str]:
        """The state of each engine, READY only where all of these workers say so."""
        states: dict[str, str] = {}
        for worker in self.able:
            for engine in worker.engines:
                if states.get(engine.url, READY) == READY:
                    states[engine.url] = engine.state
            if not worker.engines:
                states[f"of {worker.name}"] = worker.engine
        return states

    @property
    def absent_engines(self) -> str:
        """The engines of other models than the policy, all away, that episodes of the run wait
        for.
        """
        waits = [wait for worker in self.able for wait in worker.waits]
        own = [wait.what for wait in waits if wait.job_id.startswith(f"{self.name}/")]
        return listed({what for what in own if what.startswith(MODEL_AWAY)})

    @property
    def first_failure(self) -> str:
        """One of the jobs that fail again and again, with its reason. Empty when most do not."""
        failing = self.run.failing
        if not failing or len(failing) * 2 < self.run.looked_at:
            return ""
        job_id, reason = next(iter(failing.items()))
        return f"{job_id} by {reason}"

    # Phrases of the table below.

    @property
    def places(self) -> str:
        return f"{self.groups.open} open, {self.groups.ready} ready, {self.groups.held} held"

    @property
    def jobs(self) -> str:
        return f"{_count(self.groups.queued, 'queued job')}, {self.groups.leased} being played"

    @property
    def queue_flag(self) -> str:
        queues = self.run.queues
        return "" if set(queues) <= {QUEUE} else f" --queues {','.join(queues)}"

    @property
    def purpose_flag(self) -> str:
        return "" if self.purpose is Purpose.TRAIN else f" --purpose {self.purpose}"

    @property
    def served_queues(self) -> str:
        return ", ".join(sorted({q for worker in self.fleet.workers for q in worker.queues}))

    @property
    def skipped(self) -> str:
        counts = self.run.counts
        parts = [f"{counts['groups_acked']} acknowledged", f"{counts['groups_dropped']} dropped"]
        parts += [f"{number} skipped ({reason})" for reason, number in counts["skips"].items()]
        if self.other_groups:
            parts.append(f"{self.other_groups} of another --purpose")
        return ", ".join(parts)

    @property
    def dead_jobs(self) -> str:
        return _count(self.run.counts["dead"], "dead job")

    @property
    def idle_engines(self) -> str:
        sentences = []
        for state, remedy in ENGINE_REMEDIES.items():
            urls = [url for url, its in self.engine_states.items() if its == state]
            if urls:
                sentences.append(f"the engine {listed(urls)} {remedy}")
        return "; ".join(sentences)

    @property
    def misfit_reasons(self) -> str:
        names: dict[str, list[str]] = {}
        for name, reason in self.misfits.items():
            names.setdefault(reason, []).append(name)
        return "; ".join(f"{listed(those)}: {reason}" for reason, those in names.items())

    @property
    def silent_names(self) -> str:
        return f"{listed(self.silent)} for {max(self.silent.values()):.0f} s"

    @property
    def next_step(self) -> int:
        return self.groups.admission.step + 1 if self.groups.admission else 0

    @property
    def admission(self) -> str:
        bound = self.groups.admission
        if bound is None:
            return ""
        return (
            f"{bound.trained} trained; step {bound.step}, batches of {bound.groups_per_batch}, "
            f"max_staleness {bound.max_staleness}"
        )

    @property
    def missing_run(self) -> str:
        if self.name in self.fleet.names:  # a producer opened it and ended before its first group
            return "nothing was submitted to it yet"
        return f"it does not exist yet; {other_runs(self.name, self.fleet.names)}"


class Holdup(NamedTuple):
    """A condition that holds a run up."""

    condition: str
    text: str
    """Words and remedy."""


class Condition(NamedTuple):
    """A row of the table. `words` and `remedy` are formatted with the view as `v`."""

    holds: Callable[[RunView], bool]
    words: str
    remedy: str


def _wait_for_each_other(v: RunView) -> bool:
    wanted_in_vain = v.wanted > v.groups.ready + v.groups.open
    return bool(v.limit) and not v.groups.sealed and wanted_in_vain


def _has_no_consumer(v: RunView) -> bool:
    groups = v.groups
    producer_waits = v.limit or (v.is_full and groups.full == 0 and not groups.open)
    return bool(producer_waits and groups.ready and not (groups.sealed or groups.held or v.wanted))


def _waits_for_a_step(v: RunView) -> bool:
    groups = v.groups
    if not v.is_full or groups.sealed or groups.open:
        return False
    producer_waits = groups.full == 0 and not groups.held and not groups.ready
    return v.wanted > groups.ready or producer_waits


def _has_too_few_groups(v: RunView) -> bool:
    groups = v.groups
    return not groups.sealed and not groups.open and v.wanted > groups.ready


def _has_no_fit(v: RunView) -> bool:
    if not v.is_played or not v.serving or v.able:
        return False
    # A worker that left one job to others may play the rest of what it has.
    waits = [wait for worker in v.serving for wait in worker.waits]
    return not any(wait.job_id.startswith(f"{v.name}/") for wait in waits)


def _has_idle_engines(v: RunView) -> bool:
    idle = [state for state in v.engine_states.values() if state != READY]
    if not v.is_played or not idle:
        return False
    return len(idle) == len(v.engine_states) or any(state != OUTDATED for state in idle)


def _has_no_adapter(v: RunView) -> bool:
    return bool(v.is_played and v.able and v.run.adapter and not v.groups.published)


def _gets_no_messages(v: RunView) -> bool:
    if not v.is_played or not v.able:
        return False
    is_unclaimed = v.run.unclaimed_s >= LATE_S and not v.groups.leased
    all_are_free = not any(worker.busy for worker in v.able)
    return v.run.overdue_s >= LATE_S or (is_unclaimed and all_are_free)


def _has_only_dead_jobs(v: RunView) -> bool:
    is_pending = v.groups.unacknowledged or v.other_groups
    return bool(v.run.counts["dead"]) and not is_pending


CONDITIONS: Mapping[str, Condition] = {
    "redis takes no writes": Condition(
        lambda v: bool(v.fleet.server.trouble), "{v.fleet.server.trouble}", ""
    ),
    "no such run": Condition(
        lambda v: not v.run.exists, "{v.missing_run}", "`rollq submit --run {v.name}` submits jobs"
    ),
    "producer and consumer wait for each other": Condition(
        _wait_for_each_other,
        "a producer waits while {v.limit} groups are unacknowledged ({v.places}), and a consumer "
        "waits for {v.wanted} before it acknowledges",
        "acknowledge each batch (batch.ack()) before you ask for the next one, ask for fewer "
        "groups, or submit with a larger `ahead`",
    ),
    "no consumer": Condition(
        _has_no_consumer,
        "a producer waits for acknowledgements ({v.places}), and no consumer takes the groups",
        "start a trainer or `rollq pull --run {v.name} --groups {v.groups.ready}{v.purpose_flag}`, "
        "or submit with a larger `ahead`",
    ),
    "no new step": Condition(
        _waits_for_a_step,
        "admission lets no more groups in ({v.places}, {v.admission})",
        "take one batch a step; after it, once the engines serve the new weights, call "
        "`client.publish({v.next_step})` or `rollq engines publish`",
    ),
    "too few groups": Condition(
        _has_too_few_groups,
        "a consumer waits for {v.wanted} groups, and none is being played ({v.places}, "
        "{v.skipped})",
        "ask for no more than are ready, submit more jobs, play dead ones again (`rollq jobs list "
        "{v.name}`), or seal the run (`--seal`, `Client.seal()`)",
    ),
    "no worker": Condition(
        lambda v: v.is_played and not v.fleet.workers,
        "{v.jobs}, and no worker is alive",
        "start `rollq worker{v.queue_flag}`; what dead workers played comes back within "
        f"{LEASE_S:g} s",
    ),
    "no worker of the queue": Condition(
        lambda v: v.is_played and not v.serving,
        "{v.jobs}, and the live workers serve {v.served_queues} only",
        "start `rollq worker{v.queue_flag}`",
    ),
    "no worker that fits": Condition(
        _has_no_fit, "{v.jobs}, and no live worker can play them", "{v.misfit_reasons}"
    ),
    "silent worker": Condition(
        lambda v: v.is_played and bool(v.silent),
        "nothing was heard of {v.silent_names}",
        "look whether it is frozen, or start `rollq worker{v.queue_flag}`; what a dead worker "
        f"played comes back within {LEASE_S:g} s",
    ),
    "idle engine": Condition(_has_idle_engines, "{v.jobs}", "{v.idle_engines}"),
    "no engine of a model": Condition(
        lambda v: v.is_played and bool(v.absent_engines),
        "{v.jobs}, and {v.absent_engines} is away or paused",
        "start it, have it go on (`POST /continue_generation`), or give the workers another one "
        "(`ROLLQ_MODEL_ENGINES`)",
    ),
    "no adapter": Condition(
        _has_no_adapter,
        "{v.jobs}, and no version of adapter {v.run.adapter} is published",
        "`rollq engines sync --adapter {v.run.adapter} --path DIR --version V --run {v.name} "
        "--step 0` loads one and publishes it",
    ),
    "no messages": Condition(
        _gets_no_messages,
        "{v.jobs}, and the live workers get no messages of them",
        "check with `rollq doctor` that the broker is up, and that workers and producers have the "
        "same `--broker`; the workers' logs say what they refuse",
    ),
    "failing jobs": Condition(
        lambda v: v.is_played and bool(v.first_failure),
        "of {v.run.looked_at} jobs that were looked at most have failed before, {v.first_failure}",
        "`rollq stats --late --run {v.name}` shows others",
    ),
    "dead jobs": Condition(
        _has_only_dead_jobs,
        "nothing is pending, and there are {v.dead_jobs}",
        "`rollq jobs list {v.name}` says why, `rollq jobs requeue {v.name}` plays them again",
    ),
}
"""Checks by name, the first cause first."""


def find_holdup(view: RunView) -> Holdup | None:
    """The first condition that holds; None while the wait is an ordinary one."""
    for name, condition in CONDITIONS.items():
        if condition.holds(view):
            parts = [part.format(v=view) for part in (condition.words, condition.remedy) if part]
            return Holdup(name, f"run {view.name}: {': '.join(parts)}")
    return None


def run_holdup(fleet: FleetSnapshot) -> str:
    """The holdup of the snapshot's runs, of either purpose, in words; else empty."""
    holdups = [
        find_holdup(RunView(fleet=fleet, run=run, purpose=purpose))
        for run in fleet.runs
        for purpose in Purpose
    ]
    order = [*CONDITIONS]
    worst = sorted(filter(None, holdups), key=lambda holdup: order.index(holdup.condition))
    return worst[0].text if worst else ""


def fleet_holdup(fleet: FleetSnapshot) -> str:
    """The holdup of the whole fleet in words: of Redis, of a run that cannot be read, or of any
    run; else empty.
    """
    if fleet.server.trouble or fleet.unreadable:
        return fleet.server.trouble or fleet.unreadable[0]
    # Also in a run without work a consumer or a producer may wait.
    runs = sorted(fleet.runs, key=lambda run: not run.has_work)
    return run_holdup(replace(fleet, runs=runs))


def other_runs(run: str, runs: Sequence[str]) -> str:
    """Words for a run that does not exist: the one that was meant, and the latest that exist."""
    if not runs:
        return "there are no runs yet"
    text = f"runs there: {', '.join(runs[: -NAMED_RUNS - 1 : -1])}"
    more = len(runs) - NAMED_RUNS
    if more > 0:
        text += f" and {more} more (rollq stats lists them)"
    similar = difflib.get_close_matches(run, runs, 1)
    return f"did you mean {similar[0]!r}? {text}" if similar else text


def listed(names: Iterable[str]) -> str:
    """Names with commas; of many, the first ones."""
    names = sorted(names)
    text = ", ".join(names[:NAMED])
    return f"{text} and {len(names) - NAMED} more" if len(names) > NAMED else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
