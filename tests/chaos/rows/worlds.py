"""Users and environments that fail, stall, raise and hang: that job's attempt, and nobody else's."""

import json
import time

from tests.chaos.gateway import CHAT
from tests.chaos.rows import row
from tests.chaos.scene import Scene

USER = {"kind": "openai", "endpoint": "user", "model": "replay", "timeout_s": 2.0, "retries": 2}


@row("user-fails")
def fails(scene: Scene) -> None:
    """The user's endpoint answers a quarter of the requests with errors, resets and nonsense."""
    scene.open(workers=(8, 4))
    kinds = ("broken", "reset", "half", "html", "empty", "full")
    scene.gateway.fault = lambda path: scene.rng.choice(kinds) if path == CHAT and scene.rng.random() < 0.25 else ""
    scene.submit(8, 3, "--user", json.dumps(USER))
    scene.recover(scene.progress(), "turns with a failing user", 40)


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
    scene.faults += 23 - len(list(scene.mischief.iterdir()))
    scene.doomed = {f"chaos/chaos.train.{bad[3]}/{n}" for n in range(3)}


@row("env-hangs")
def hangs(scene: Scene) -> None:
    """Two steps sleep for a minute and one holds the interpreter; the jobs have ten seconds an attempt."""
    bad = scene.rng.sample(range(8), 3)
    for task, kind in zip(bad, ("hang", "hang", "spin"), strict=True):
        (scene.mischief / f"{kind}.{task}.0").touch()
    scene.open(workers=(8, 4))
    scene.submit(8, 3, "--deadline", "10", env="chaos")
    start = time.monotonic()
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.recovered_s.append(time.monotonic() - start)
    scene.faults += 3 - len(list(scene.mischief.iterdir()))
