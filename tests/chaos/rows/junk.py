"""Garbage where rollq keeps its own: in the broker's list, in journals, in the records of jobs."""

import json

import celery

from tests.chaos.rows import row
from tests.chaos.scene import RUN, Scene

JUNK = (b"x", b"{", b"[]", b"null", b'{"body": "!!!"}', b"\xff\xfe", b"[" * 100_000, b"1", b'"rollq"')
ENVELOPE = {
    "body": "W10=",
    "headers": {"id": "x", "task": "rollq.play"},
    "content-type": "application/json",
    "properties": {"delivery_tag": "t", "body_encoding": "base64", "delivery_info": {}},
}
WRONG = ([], [None], ["no/such"], ["junk/shop.train.0/99"], [{"a": 1}], ["r/g/0", 1], ["\x00"], [f"{RUN}/x/0"])


def flood(scene: Scene) -> int:
    """Puts every kind of junk on the queue, and every job of the run again. Returns how many messages."""
    redis, queue = scene.broker()
    for junk in (*JUNK, json.dumps(ENVELOPE).encode()):
        redis.rpush(queue, junk)
    jobs = [[job] for job in scene.rng.sample(sorted(scene.expected), min(20, len(scene.expected)))]
    with celery.Celery(broker=scene.redis_url, set_as_current=False) as app:
        app.conf.broker_pool_limit = None
        for args in (*WRONG, *jobs):
            app.send_task("rollq.play", args=args, queue=queue)
        app.send_task("no.such.task", args=[1], queue=queue)
    return len(JUNK) + 2 + len(WRONG) + len(jobs)


@row("broker-junk")
def broker(scene: Scene) -> None:
    """Malformed messages, messages of other makers, wrong arguments, and every job's message again, three times."""
    workers = scene.open(workers=(8, 4))
    scene.submit(10)
    for _ in range(3):
        scene.wait(scene.progress(), "a run that goes", 40)
        scene.faults += flood(scene)
        scene.recover(scene.progress(), "turns after a flood of junk", 40)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.check(all(worker.exit_code is None for worker in workers), "junk took a worker down")


@row("journal-junk")
def journal(scene: Scene) -> None:
    """Journals overwritten: of jobs whose worker is then killed (they begin again), and of finished ones (dead)."""
    victim, _ = scene.open(workers=(8, 4))
    scene.submit(8, 3, "--min-viable", "1")
    held = scene.await_some(victim, 4)
    scene.wait(scene.progress(), "a run that goes", 40)
    redis, keys = scene.client.ledger.redis, scene.client.ledger.keys
    for job, _ in held[:3]:
        redis.lset(keys.journal(job), scene.rng.choice((0, -1)), scene.rng.randbytes(40))
        scene.faults += 1
    scene.kill(victim)
    scene.recover(lambda: scene.taken_over(held), "others to play jobs with a damaged journal", 60)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.doomed = set(bad := scene.rng.sample(sorted(scene.expected), 2))
    for job in bad:
        redis.lset(keys.journal(job), -1, scene.rng.randbytes(40))
        scene.faults += 1
    scene.consume()
    scene.wait(lambda: len(scene.client.dead()) == 2, "the death of jobs that cannot be read", 40)
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
    scene.faults += 3
    scene.worker(8)
    scene.recover(lambda: scene.ended() >= len(scene.expected), "the end of all jobs", 90)
    for letter in scene.client.dead():
        scene.check(letter.job_id in bad and letter.job_id in letter.reason, f"a dead letter says: {letter}")
