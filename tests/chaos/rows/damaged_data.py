"""Garbage in the broker's list, in journals and in the bodies of jobs."""

from collections.abc import Sequence

from rollq.job import QUEUE
from rollq.processes.child import Child
from tests.chaos.fault_run import FaultRun, Leases
from tests.chaos.junk_messages import JUNK, send_junk_messages
from tests.chaos.rows import row
from tests.ledger_of import ledger_of


@row("broker-junk")
def broker(run: FaultRun) -> None:
    """Foreign messages, wrong arguments, and every job's message again, three times: no worker
    minds.

    Then what is no message at all: each ends a worker in one line, which is started again. Then the
    queue itself is overwritten, with all its messages: every worker ends, and none starts before
    the key is gone.
    """
    workers = run.start_processes(latency=1.0, workers=(8, 4))
    run.submit(12)
    for _ in range(3):
        run.wait_for_progress()
        send_junk_messages(run)
        run.measure_recovery(run.progress(), "turns after a flood of junk", 40)
    run.check(
        all(worker.exit_code is None for worker in workers),
        "messages that mean nothing took a worker down",
    )
    redis = ledger_of(run.client).redis
    for junk in JUNK:
        redis.rpush(QUEUE, junk)
        (ended,) = wait_for_ends(run, workers, 1)
        workers[workers.index(ended)] = run.start_worker(4)
    run.check(
        run.ended() < len(run.expected), "the fault did not happen: no job needs the queue any more"
    )
    redis.set(QUEUE, b"garbage")
    wait_for_ends(run, workers, len(workers))
    run.count_fault(
        "workers that refused to start", said_at_start(run).count(f"{QUEUE!r} is a string")
    )
    redis.delete(QUEUE)
    run.start_worker(8)
    run.measure_recovery(run.progress(), "turns once the queue is well", 40)
    run.wait_for_end()
    run.check_no_failures()


def wait_for_ends(run: FaultRun, workers: Sequence[Child], count: int) -> list[Child]:
    """The workers that have ended, so many, each because of the broker and after one
    line about it.
    """
    run.wait(
        lambda: sum(worker.exit_code is not None for worker in workers) == count,
        f"the end of {count} workers",
        30,
    )
    ended = [worker for worker in workers if worker.exit_code is not None]
    for worker in ended:
        lines = worker.log.read_text(errors="replace").count("the worker ends: ")
        run.check(
            (worker.exit_code, lines) == (1, 1),
            f"{worker.name}: exit code {worker.exit_code}, {lines} lines",
        )
    run.count_fault("workers that ended in one line", count, count)
    return ended


def said_at_start(run: FaultRun) -> str:
    """What a worker says that cannot start."""
    worker = run.start_worker(4, wait=False)
    run.wait(lambda: worker.exit_code is not None, "a worker that cannot start", 30)
    return worker.tail()


@row("journal-junk")
def journal(run: FaultRun) -> None:
    """Damaged journals: jobs whose worker is killed start again; finished jobs are dead."""
    victim, _ = run.start_processes(latency=0.4, workers=(8, 4))
    run.submit(8, 3, "--set", "min_viable=1")
    redis, keys = ledger_of(run.client).redis, ledger_of(run.client).keys

    def with_journals(held: Leases) -> list[str]:
        return [job for job, _ in held if redis.llen(keys.journal(job))]

    run.wait(
        lambda: len(with_journals(run.leases_of(victim))) >= 3, "the journals of three jobs", 40
    )
    held = run.freeze_with_leases(victim)
    damaged = with_journals(held)[:3]
    for job in damaged:
        redis.lset(keys.journal(job), run.rng.choice((0, -1)), run.rng.randbytes(40))
    run.send_signal(victim)
    run.measure_recovery(
        lambda: run.taken_over(held), "others to play jobs with a damaged journal", 60
    )
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
        run.check(
            letter.job_id in jobs and letter.job_id in letter.reason,
            f"a dead letter says: {letter}",
        )


@row("record-junk")
def record(run: FaultRun) -> None:
    """The bodies of three queued jobs are garbage: these jobs die, and the rest of their groups is
    delivered.
    """
    run.start_processes(workers=())
    run.submit(8, 3, "--set", "min_viable=1")
    redis, keys = ledger_of(run.client).redis, ledger_of(run.client).keys
    run.expected_dead = set(bad := run.rng.sample(sorted(run.expected), 3))
    for job in bad:
        redis.hset(keys.job(job), "body", b"garbage")
    run.start_worker(8)
    run.measure_recovery(run.has_ended, "the end of all jobs", 90)
    check_dead_letters(run, "damaged bodies", bad)
