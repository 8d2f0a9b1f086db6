"""Garbage in the broker's list, in journals and in the records of jobs."""

from collections.abc import Sequence

from rollq.client.client import internals
from rollq.ledger.keys import QUEUE
from tests.chaos.fault_run import FaultRun
from tests.chaos.junk_messages import send_junk_messages
from tests.chaos.rows import row


@row("broker-junk")
def broker(run: FaultRun) -> None:
    """Malformed and foreign messages, wrong arguments, and every job's message again, three times.

    Then the queue itself is overwritten, with all its messages.
    """
    workers = run.start_processes(latency=1.0, workers=(8, 4))
    run.submit(12)
    for _ in range(3):
        run.wait_for_progress()
        send_junk_messages(run)
        run.measure_recovery(run.progress(), "turns after a flood of junk", 40)
    run.check(run.ended() < len(run.expected), "the fault did not happen: no job needs the queue any more")
    internals(run.client).ledger.redis.set(QUEUE, b"garbage")
    run.wait_for_end()
    said = "".join(worker.log.read_text(errors="replace") for worker in workers)
    run.count_fault(
        "messages that were no job", sum(map(said.count, ("dropping a broker message", "ignoring a me"))), 12
    )
    run.count_fault("queues that were overwritten", said.count(f"the broker's key {QUEUE} was a string"))
    run.check(all(worker.exit_code is None for worker in workers), "junk took a worker down")


@row("journal-junk")
def journal(run: FaultRun) -> None:
    """Damaged journals: jobs whose worker is killed start again; finished jobs are dead."""
    victim, _ = run.start_processes(latency=0.4, workers=(8, 4))
    run.submit(8, 3, "--min-viable", "1")
    run.wait_for_leases(victim, 4)
    run.wait_for_progress()
    redis, keys = internals(run.client).ledger.redis, internals(run.client).ledger.keys
    held = run.freeze_with_leases(victim)
    damaged = [job for job, _ in held if redis.llen(keys.journal(job))][:3]
    for job in damaged:
        redis.lset(keys.journal(job), run.rng.choice((0, -1)), run.rng.randbytes(40))
    run.send_signal(victim)
    run.measure_recovery(lambda: run.taken_over(held), "others to play jobs with a damaged journal", 60)
    run.wait_for_end()
    restarted = [job for job in damaged if run.client.job(job).set_aside]
    run.count_fault("jobs that started again for a damaged journal", len(restarted), 3)
    run.expected_dead = set(bad := run.rng.sample(sorted(run.expected), 2))
    for job in bad:
        redis.lset(keys.journal(job), -1, run.rng.randbytes(40))
    run.start_consumer()
    run.wait(lambda: len(run.client.dead()) == 2, "the death of jobs that cannot be read", 40)
    check_dead_letters(run, "damaged journals that cannot be read", bad)


def check_dead_letters(run: FaultRun, what: str, jobs: Sequence[str]) -> None:
    """These jobs are dead, and each reason names its job."""
    letters = run.client.dead()
    run.count_fault(what, len(letters), len(jobs))
    for letter in letters:
        run.check(letter.job_id in jobs and letter.job_id in letter.reason, f"a dead letter says: {letter}")


@row("record-junk")
def record(run: FaultRun) -> None:
    """The records of three queued jobs are garbage: these jobs die, and the rest of their groups is delivered."""
    run.start_processes(workers=())
    run.submit(8, 3, "--min-viable", "1")
    redis, keys = internals(run.client).ledger.redis, internals(run.client).ledger.keys
    run.expected_dead = set(bad := run.rng.sample(sorted(run.expected), 3))
    redis.hset(keys.job(bad[0]), "body", b"garbage")
    redis.hset(keys.job(bad[1]), "state", b"garbage")
    redis.delete(keys.job(bad[2]))
    redis.set(keys.job(bad[2]), b"garbage")
    run.start_worker(8)
    run.measure_recovery(run.has_ended, "the end of all jobs", 90)
    check_dead_letters(run, "damaged records", bad)
