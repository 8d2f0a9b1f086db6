"""Producers and consumers that wait for each other, for a trainer's step or for groups that never
come. Pure.
"""

from rollq.job import Purpose
from rollq.ledger.constants import HOLD_S
from rollq.ledger.replies import Admission
from rollq.snapshot.run_wait import RunWait


def group_problem(w: RunWait) -> str:
    """Who waits for whom, and what to do; empty when none waits for groups, or they are being
    played.
    """
    cases = (_each_other, _unread, _bounded, _exhausted, _another_consumer)
    return next(filter(None, (case(w) for case in cases)), "")


def _each_other(w: RunWait) -> str:
    s = w.standing
    if not w.ahead or s.sealed or w.wanted <= s.ready + s.open:
        return ""
    return (
        f"a producer waits while {w.ahead} groups are unacknowledged ({_places(w)}), and "
        "a consumer waits for"
        f" {_groups(w.wanted)} before it acknowledges: acknowledge each batch before you "
        "ask for the next one, ask for"
        f" fewer groups, or submit with an `ahead` of at least {s.held + w.wanted}"
    )


def _unread(w: RunWait) -> str:
    s = w.standing
    if not w.ahead or s.sealed or w.wanted or not (s.ready or s.held):
        return ""
    waits = f"a producer waits while {w.ahead} groups are unacknowledged ({_places(w)})"
    if s.held:
        return (
            f"{waits}: the consumer that holds {s.held} of them has to acknowledge its "
            "batch (batch.ack())"
        )
    purpose = "" if w.purpose is Purpose.TRAIN else f" --purpose {w.purpose}"
    return (
        f"{waits}, and no consumer takes them: start a trainer or `rollq pull --run "
        f"{w.name} --groups"
        f" {s.ready}{purpose}`, or submit with a larger `ahead`"
    )


def _bounded(w: RunWait) -> str:
    """Admission lets nothing in, and nothing is being played that could change it."""
    s, bound = w.standing, w.standing.admission
    if (
        bound is None
        or bound.capacity > 0
        or s.sealed
        or s.open
        or not (w.blocked or w.wanted > s.ready)
    ):
        return ""
    counts = (
        f"admission lets no more in ({_places(w)}, {bound.trained} trained; step "
        f"{bound.step}, batches of"
        f" {bound.groups_per_batch}, max_staleness {bound.max_staleness})"
    )
    if w.wanted > s.ready:
        back = (
            f"; what a dead consumer held comes back within {HOLD_S:g} s" if s.held > w.own else ""
        )
        return (
            f"a consumer waits for {_groups(w.wanted)}, and {counts}: "
            f"{_unpublished(w, bound)}{back}"
        )
    if s.held:
        return ""  # they are being trained on
    if s.ready and not w.wanted:
        take = (
            f"start a trainer or `rollq pull --run {w.name} --groups "
            f"{min(s.ready, bound.groups_per_batch)}`"
        )
        return f"a producer waits, because {counts}, and no consumer takes the groups: {take}"
    return "" if s.ready else f"a producer waits, because {counts}: {_unpublished(w, bound)}"


def _unpublished(w: RunWait, bound: Admission) -> str:
    """What the trainer has to publish."""
    call, given = (
        f"`client.publish({bound.step + 1})` or `rollq engines publish`",
        w.standing.held + bound.trained,
    )
    if not w.standing.published:
        return (
            "nothing was ever published. After each batch, once the engines serve its "
            f"weights, call {call}"
        )
    if given >= (bound.step + 2) * bound.groups_per_batch:
        return (
            f"the trainer was given {given} groups, and each step has "
            f"{bound.groups_per_batch}. Take one batch a step,"
            f" and publish after each one, with the number of batches as the step: {call}"
        )
    return (
        f"step {bound.step + 1} is not published yet. Once the engines serve its "
        f"weights, call {call}"
    )


def _exhausted(w: RunWait) -> str:
    s, acked, dropped = w.standing, w.run.counts["groups_acked"], w.run.counts["groups_dropped"]
    skips = w.run.counts["skips"]
    if s.sealed or s.open or w.wanted <= s.ready:
        return ""
    waits = f"a consumer waits for {_groups(w.wanted)}, and no group is being played"
    if not (s.ready or s.held) and w.elsewhere:
        other = Purpose.EVAL if w.purpose is Purpose.TRAIN else Purpose.TRAIN
        return (
            f"{waits}: its groups are for {other}; ask for them with `--purpose "
            f"{other}` or `purpose=`"
        )
    if not (s.ready or s.held or acked or dropped or skips):
        return f"{waits}: nothing was submitted to it; see `rollq submit`"
    skipped = "".join(f", {n} skipped ({reason})" for reason, n in skips.items())
    counts = f"{waits}: {_places(w)}, {acked} acknowledged, {dropped} dropped{skipped}"
    if s.held > w.own:
        counts += f". {_of_another(w)}"
    dead = (
        f"`rollq jobs list {w.name}` says why, `rollq jobs requeue` plays them again. "
        if dropped
        else ""
    )
    fewer = f", ask for at most {s.ready}" if s.ready else ""
    return (
        f"{counts}. {dead}Submit more jobs{fewer}, or seal the run (`--seal`, "
        "`Client.seal()`; again, if it was sealed:"
        " Redis has lost the seal)"
    )


def _another_consumer(w: RunWait) -> str:
    s = w.standing
    if not s.sealed or s.open or w.wanted <= s.ready or s.held <= w.own:
        return ""
    return f"a consumer waits for {_groups(s.held - w.own)} of another consumer. {_of_another(w)}"


def _of_another(w: RunWait) -> str:
    return (
        f"Another consumer holds {_groups(w.standing.held - w.own)} and has not "
        "acknowledged them (batch.ack()). They"
        f" come when it gives them back, or within {HOLD_S:g} s if it died"
    )


def _groups(number: int) -> str:
    return f"{number} group" + ("" if number == 1 else "s")


def _places(w: RunWait) -> str:
    s = w.standing
    return f"{s.open} open, {s.ready} ready, {s.held} held"
