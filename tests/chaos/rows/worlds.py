"""Users and environments that fail, stall, raise and hang: that job's attempt, and nobody else's."""

import json
import time

from tests.chaos.gateway import CHAT
from tests.chaos.rows import row
from tests.chaos.scene import LEASE_S, Scene
from tests.processes import alive

USER = {"kind": "openai", "endpoint": "user", "model": "replay", "timeout_s": 2.0, "retries": 2}


@row("user-fails")
def fails(scene: Scene) -> None:
    """The user's endpoint answers a quarter of the requests with errors, resets and nonsense."""
    scene.open(workers=(8, 4))
    kinds = ("broken", "reset", "half", "html", "empty", "full")
    scene.gateway.fault = lambda path: scene.rng.choice(kinds) if path == CHAT and scene.rng.random() < 0.25 else ""
    scene.submit(8, 3, "--user", json.dumps(USER))
    scene.recover(scene.progress(), "turns with a failing user", 40)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.struck("requests to the user that went wrong", scene.gateway.spoiled.total(), 5)


@row("user-stalls")
def stalls(scene: Scene) -> None:
    """The user's endpoint answers nobody for seconds, then leaves every tenth unanswered."""
    scene.open(workers=(8, 4))
    scene.submit(8, 3, "--user", json.dumps(USER))
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.gateway.fault = lambda path: "stall" if path == CHAT else ""
    time.sleep(scene.rng.uniform(3.0, 6.0))
    scene.gateway.fault = lambda path: "stall" if path == CHAT and scene.rng.random() < 0.1 else ""
    scene.recover(scene.progress(), "turns with a user that stalls at times", 40)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.struck("requests to the user that were left unanswered", scene.gateway.spoiled.total(), 5)


@row("env-raises")
def raises(scene: Scene) -> None:
    """Three tasks raise once, a fourth whenever it is played: its members die, and their group is dropped."""
    bad = scene.rng.sample(range(8), 4)
    for task in bad[:3]:
        (scene.mischief / f"raise.{task}.0").touch()
    for n in range(20):
        (scene.mischief / f"raise.{bad[3]}.{n:02}").touch()
    scene.open(workers=(8, 4))
    scene.submit(8, 3, env="chaos")
    start = time.monotonic()
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.recovered_s.append(time.monotonic() - start)
    failed = scene.stats()["failures"].get("env", 0)
    scene.struck("steps that raised", min(scene.mischief_of("raise"), failed), 9)
    scene.doomed = {f"chaos/chaos.train.{bad[3]}/{n}" for n in range(3)}


@row("env-hangs")
def hangs(scene: Scene) -> None:
    """Three steps sleep for a minute; the jobs have ten seconds an attempt."""
    for task in scene.rng.sample(range(8), 3):
        (scene.mischief / f"hang.{task}.0").touch()
    scene.open(workers=(8, 4))
    scene.submit(8, 3, "--deadline", "10", env="chaos")
    start = time.monotonic()
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.recovered_s.append(time.monotonic() - start)
    stats = scene.stats()
    scene.struck("steps that hung", min(scene.mischief_of("hang"), stats["failures"].get("env", 0)), 3)
    scene.check(stats["failures"] == {"env": 3}, f"three steps that hung cost {stats['failures']}")


@row("env-holds")
def holds(scene: Scene) -> None:
    """A step holds a worker's interpreter for longer than a lease: its jobs go on elsewhere; awake, it is refused."""
    scene.open(workers=(4, 4))
    (scene.mischief / f"hold.{scene.rng.randrange(8)}.0").touch()
    scene.submit(8, 3, env="chaos")
    scene.wait(lambda: scene.mischief_of("hold") == 1, "a step that holds the interpreter", 60)
    start = time.monotonic()
    scene.wait(lambda: scene.stats()["expired"] >= 1, "the expiry of a held worker's leases", LEASE_S + 10)
    scene.recover(scene.progress(), "turns elsewhere", 30, start)
    scene.wait(lambda: scene.stats()["fenced"] > 0, "a refused write of the worker that woke up", 40)
    scene.struck("leases that a held interpreter lost", scene.stats()["expired"])


@row("env-isolated")
def isolated(scene: Scene) -> None:
    """Environments in processes of their own: four steps hold their interpreter for ever, one as its worker is killed.

    The others cost their jobs one attempt, and nobody else anything; no process outlives its worker.
    """
    for task in (0, 5, 6, 7):
        (scene.mischief / f"spin.{task}.0").touch()
    isolate = {"ROLLQ_ISOLATE": "chaos"}
    scene.open(workers=())
    victim = scene.worker(6, env=isolate)
    scene.submit(8, 3, "--deadline", "10", env="chaos")
    scene.wait(lambda: scene.mischief_of("spin") == 1, "a step without end", 30)
    (spun,) = scene.mischief_done.glob("spin.*")
    time.sleep(scene.rng.uniform(0.3, 1.5))
    held = scene.caught(victim)
    scene.check(alive(pid := int(spun.read_text())), "the fault did not happen: the step has ended")
    scene.kill(victim)
    start = time.monotonic()
    scene.worker(8, env=isolate, wait=False)
    scene.wait(lambda: not alive(pid), "the end of a process whose worker was killed", 10)
    scene.wait(lambda: scene.stats()["failures"].get("env", 0) >= 3, "three steps that were given up", 90)
    scene.wait(lambda: scene.taken_over(held), "others to play a dead worker's jobs", LEASE_S + 30)
    scene.recovered_s.append(time.monotonic() - start)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    failures = scene.stats()["failures"]
    scene.struck("steps that held their interpreter", scene.mischief_of("spin"), 4)
    scene.check(
        failures == {"env": 3, "worker": len(held)}, f"a death with {len(held)} jobs, and three steps: {failures}"
    )
