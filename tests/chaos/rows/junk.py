"""Garbage where rollq keeps its own: in the broker's list, in journals, in the records of jobs."""

from rollq.ledger.keys import QUEUE
from tests.chaos.flood import flood
from tests.chaos.rows import row
from tests.chaos.scene import Scene


@row("broker-junk")
def broker(scene: Scene) -> None:
    """Malformed messages, messages of other makers, wrong arguments, and every job's message again, three times.

    Then the queue itself is overwritten, with all messages that it held.
    """
    workers = scene.open(latency=0.5, workers=(8, 4))
    scene.submit(12)
    for _ in range(3):
        scene.wait(scene.progress(), "a run that goes", 40)
        flood(scene)
        scene.recover(scene.progress(), "turns after a flood of junk", 40)
    scene.check(scene.ended() < len(scene.expected), "the fault did not happen: nobody needs the queue any more")
    scene.client.ledger.redis.set(QUEUE, b"garbage")
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    said = "".join(worker.log.read_text(errors="replace") for worker in workers)
    scene.struck("messages that were no job", sum(map(said.count, ("dropping a broker message", "ignoring a me"))), 12)
    scene.struck("queues that were overwritten", said.count(f"the broker's key {QUEUE} was a string"))
    scene.check(all(worker.exit_code is None for worker in workers), "junk took a worker down")


@row("journal-junk")
def journal(scene: Scene) -> None:
    """Journals overwritten: of jobs whose worker is then killed (they begin again), and of finished ones (dead)."""
    victim, _ = scene.open(latency=0.4, workers=(8, 4))
    scene.submit(8, 3, "--min-viable", "1")
    scene.await_some(victim, 4)
    scene.wait(scene.progress(), "a run that goes", 40)
    redis, keys = scene.client.ledger.redis, scene.client.ledger.keys
    held = scene.caught(victim)
    damaged = [job for job, _ in held if redis.llen(keys.journal(job))][:3]
    for job in damaged:
        redis.lset(keys.journal(job), scene.rng.choice((0, -1)), scene.rng.randbytes(40))
    scene.kill(victim)
    scene.recover(lambda: scene.taken_over(held), "others to play jobs with a damaged journal", 60)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    begun = [job for job in damaged if scene.client.job(job).set_aside]
    scene.struck("damaged journals that were begun anew", len(begun), 3)
    scene.doomed = set(bad := scene.rng.sample(sorted(scene.expected), 2))
    for job in bad:
        redis.lset(keys.journal(job), -1, scene.rng.randbytes(40))
    scene.consume()
    scene.wait(lambda: len(scene.client.dead()) == 2, "the death of jobs that cannot be read", 40)
    scene.struck("damaged journals that cannot be read", len(scene.client.dead()), 2)
    for letter in scene.client.dead():
        scene.check(letter.job_id in bad and letter.job_id in letter.reason, f"a dead letter says: {letter}")


@row("record-junk")
def record(scene: Scene) -> None:
    """The records of three queued jobs are garbage: those die, by name, the others of their groups are delivered."""
    scene.open(workers=())
    scene.submit(8, 3, "--min-viable", "1")
    redis, keys = scene.client.ledger.redis, scene.client.ledger.keys
    scene.doomed = set(bad := scene.rng.sample(sorted(scene.expected), 3))
    redis.hset(keys.job(bad[0]), "body", b"garbage")
    redis.hset(keys.job(bad[1]), "state", b"garbage")
    redis.delete(keys.job(bad[2]))
    redis.set(keys.job(bad[2]), b"garbage")
    scene.worker(8)
    scene.recover(lambda: scene.ended() >= len(scene.expected), "the end of all jobs", 90)
    scene.struck("damaged records", len(scene.client.dead()), 3)
    for letter in scene.client.dead():
        scene.check(letter.job_id in bad and letter.job_id in letter.reason, f"a dead letter says: {letter}")
