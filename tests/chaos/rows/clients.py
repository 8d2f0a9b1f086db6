"""Trainers killed with a batch in hand, frozen, acknowledging twice; producers killed in the middle of a submission."""

import os
import signal
import time

from rollq.processes.child import Child
from tests.chaos.parts import RUN
from tests.chaos.rows import row
from tests.chaos.scene import Scene

HOLD_S = 60.0


def trainer(scene: Scene, *flags: str) -> Child:
    """A consumer that takes one batch of two groups, and then does as told; what it acknowledges, it writes down."""
    return scene.start("trainer", "--run", RUN, "--out", str(scene.out), *flags, module="tests.chaos.trainer")


def says(scene: Scene, child: Child, word: str, within_s: float = 40.0) -> None:
    scene.wait(lambda: word in child.log.read_text(), f"a trainer that is {word}", within_s)


@row("trainer-kill", deadline_s=320.0)
def kill(scene: Scene) -> None:
    """One is killed with a batch in hand and one frozen beyond its hold: both batches come again, and once.

    The frozen one wakes up and acknowledges what is another's by then: refused.
    """
    scene.open(latency=0.1, workers=(8,))
    scene.submit(8)
    dead, frozen = trainer(scene, "--then", "hold"), trainer(scene, "--then", "ack-late")
    for child in (dead, frozen):
        says(scene, child, "holding")
    scene.kill(dead)
    scene.kill(frozen, signal.SIGSTOP)
    start = time.monotonic()
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.consume()
    scene.wait(lambda: scene.stats()["delivered"] >= len(scene.expected), "both batches again", HOLD_S + 20)
    scene.recovered_s.append(time.monotonic() - start)
    os.kill(frozen.pid, signal.SIGCONT)
    says(scene, frozen, "refused")
    scene.check(scene.stats()["redelivered"] == 4, f"{scene.stats()['redelivered']} groups were handed out again")


@row("trainer-acks-twice")
def twice(scene: Scene) -> None:
    """Every batch acknowledged three times, by three trainers that share the run; each group is had by one of them."""
    scene.open(latency=0.1, workers=(8,))
    scene.submit(9)
    for _ in range(3):
        child = trainer(scene, "--then", "ack-thrice")
        says(scene, child, "done")
        scene.struck("batches acknowledged again, twice", int(child.log.read_text().count("acknowledged again") == 2))


@row("pull-kill", deadline_s=400.0)
def pull(scene: Scene) -> None:
    """`rollq pull` killed again and again, at any moment, and started again with the same file."""
    scene.open(latency=0.1, workers=(8,))
    scene.submit(60, 2)
    killed = 0
    for _ in range(8):
        puller = scene.consume(60)
        scene.wait(lambda: bool(scene.client.ledger.standing().unacknowledged), "a group", 20)
        time.sleep(scene.rng.uniform(0.4, 1.2))
        killed += scene.hit(puller, signal.SIGKILL)
        start = time.monotonic()
    scene.struck("consumers that were killed", killed, 4)
    scene.consume()
    scene.recover(lambda: scene.stats()["delivered"] >= len(scene.expected), "all groups", HOLD_S + 30, start)


@row("producer-kill")
def producer(scene: Scene) -> None:
    """`rollq submit --ahead 2` killed in mid-submission, and the same line again until it is through."""
    scene.open(latency=0.05, workers=(8,))
    scene.consume(2)
    scene.expect("shop", range(16), 2)
    line = scene.line(0, 15, 2, "--ahead", "2", "--seal", "--json")
    killed = 0
    for _ in range(4):
        submit = scene.start("submit", *line)
        before = scene.stats()["submitted"]
        scene.wait(
            lambda b=before, s=submit: s.exit_code is not None or scene.stats()["submitted"] > b,  # type: ignore[misc]
            "a submission",
            30,
        )
        time.sleep(scene.rng.uniform(0.0, 0.4))
        killed += scene.hit(submit, signal.SIGKILL)
    scene.struck("producers that were killed", killed)
    scene.check(scene.stats()["submitted"] < len(scene.expected), "a producer was through before it was killed")
    start = time.monotonic()
    last = scene.start("submit", *line)
    scene.wait(lambda: last.exit_code is not None, "the last submission", 60)
    scene.check(last.exit_code == 0, f"the last submission failed: {last.tail()}")
    scene.recovered_s.append(time.monotonic() - start)
