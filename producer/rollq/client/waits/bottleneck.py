"""What an ordinary wait is for: work is under way, and this is what most of it waits for. Troubles come first, and no
advice for more workers follows them. Pure: it judges `Facts`."""

from collections import Counter
from collections.abc import Sequence

from rollq.client.waits.facts import Facts
from rollq.client.waits.troubles import troubles
from rollq.ledger.workers.live_workers import LiveWorker, Wait

TAKEN = 0.9
"""Share of the slots from which on they count as taken: there is always one between two jobs."""


def bottleneck(facts: Facts) -> str:
    """What is being waited for, and what would make it shorter; empty when nothing is pending and nothing died."""
    if not facts.known:
        return ""
    if facts.open and (facts.queued or facts.leased):
        return _played(facts)
    if facts.held:
        own = f"{facts.held} group{' is' if facts.held == 1 else 's are'} held by a consumer"
        return f"{own} that has not acknowledged them yet (batch.ack()), and none is being played"
    if facts.ready:
        return f"{facts.ready} group{' is' if facts.ready == 1 else 's are'} ready, and no consumer has taken them yet"
    if facts.dead and not facts.elsewhere:
        dead = f"{facts.dead} job{' is' if facts.dead == 1 else 's are'} dead"
        again = "`rollq jobs requeue` plays them again"
        return f"nothing is pending, and {dead}: see `rollq jobs list {facts.run}`; {again}"
    return ""


def _played(f: Facts) -> str:
    wrong, text = troubles(f), f"{f.queued} queued, {f.leased} being played"
    waits = [wait for worker in f.able for wait in worker.waits if wait.job_id.startswith(f"{f.run}/")]
    if waits:
        text += f": {_kinds(waits)}; {_longest(waits)}"
    more = f"`rollq late --run {f.run}` shows the oldest" if wrong else _failing(f) or _advice(f)
    return f"{wrong} {text}. {more}".lstrip()


def _kinds(waits: Sequence[Wait]) -> str:
    """What the episodes wait for, the most frequent first."""
    counts = Counter(wait.what for wait in waits).most_common(3)
    return ", ".join(f"{count} wait{'s' * (count == 1)} for {what}" for what, count in counts)


def _longest(waits: Sequence[Wait]) -> str:
    longest = max(waits, key=lambda wait: wait.seconds)
    return f"{longest.job_id} has waited the longest, {longest.seconds:.0f} s for {longest.what}"


def _failing(f: Facts) -> str:
    """Of jobs that fail again and again, one and why; empty when fewer than half of those that were looked at do."""
    if len(f.failing) * 2 < max(f.looked_at, 1):
        return ""
    job, why = next(iter(f.failing.items()))
    return (
        f"Of {f.looked_at} jobs that were looked at, {len(f.failing)} have failed before, {job} by {why}."
        f" `rollq late --run {f.run}` shows others"
    )


def _advice(f: Facts) -> str:
    """What keeps the queued jobs waiting."""
    if not f.queued:
        return f"`rollq late --run {f.run}` shows each of them"
    if f.able and sum(worker.busy for worker in f.able) >= TAKEN * _slots(f.able):
        return f"All {_slots(f.able)} slots are taken: another worker, or a larger -c, would help"
    return f"`rollq late --run {f.run}` shows the oldest"


def _slots(workers: Sequence[LiveWorker]) -> int:
    return sum(worker.slots for worker in workers)
