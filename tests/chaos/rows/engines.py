"""The engine killed, hung, overloaded, talking nonsense, or given new weights."""

import os
import signal
import time

from rollq.processes.child import Child
from tests.chaos.gateway import GARBAGE, GENERATE
from tests.chaos.rows import row
from tests.chaos.scene import Scene


@row("engine-kill")
def kill(scene: Scene) -> None:
    """kill -9 with requests in flight, and away for some seconds; twice."""
    scene.open(latency=0.3, workers=(8, 4))
    scene.submit(10)
    for _ in range(2):
        scene.wait(scene.progress(), "a run that goes", 40)
        scene.wait(lambda: scene.gateway.waiting > 3, "requests in flight", 20)
        broken = scene.gateway.broken
        scene.kill(scene.engine)
        scene.gateway.down()
        time.sleep(scene.rng.uniform(1.0, 5.0))
        scene.check(scene.gateway.broken > broken, "the fault did not happen: no request was in flight")
        scene.restart_engine()
        scene.recover(scene.progress(), "turns after the engine's return", 40)
    scene.cost_nothing()


@row("engine-hang")
def hang(scene: Scene) -> None:
    """Frozen with requests in flight until both workers have found out, then awake; frozen again, killed, replaced.

    The workers ask after 5 seconds instead of a minute, and take two for silence instead of ten.
    """
    hasty = "engine_watch.SLOW_S=5 engine_watch.LOOK_S=1 engine_control.PROBE_TIMEOUT_S=2"
    settings = {"CHAOS_SETTINGS": " ".join(f"rollq_worker.{setting}" for setting in hasty.split())}
    scene.open(latency=0.3, workers=())
    workers = [scene.worker(slots, env=settings) for slots in (8, 4)]
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.wait(lambda: all(len(scene.held_by(worker)) >= 4 for worker in workers), "jobs of both workers", 40)
    scene.kill(scene.engine, signal.SIGSTOP)
    for worker in workers:
        scene.wait(lambda w=worker: _noticed(w), "a worker that finds out", 90)  # type: ignore[misc]
    scene.wait(lambda: scene.gateway.waiting == 0, "the end of all requests to an engine that hangs", 20)
    os.kill(scene.engine.pid, signal.SIGCONT)
    scene.recover(scene.progress(), "turns after the engine woke up", 40)
    scene.wait(lambda: scene.gateway.waiting > 3, "requests in flight", 20)
    scene.kill(scene.engine, signal.SIGSTOP)
    broken = scene.gateway.broken
    scene.standstill("engines that hung", 3)
    scene.kill(scene.engine)
    scene.gateway.down()
    scene.restart_engine()
    scene.recover(scene.progress(), "turns after the engine was replaced", 40)
    scene.check(scene.gateway.broken > broken, "the fault did not happen: no request was in flight")
    scene.cost_nothing()


def _noticed(worker: Child) -> bool:
    """Whether it has given its requests up to an engine that hangs."""
    return "the engine does not answer, time 2" in worker.log.read_text(errors="replace")


@row("engine-503")
def full(scene: Scene) -> None:
    """A full queue: 503 for everybody for seconds, then for half of the requests."""
    scene.open(latency=0.2, workers=(8, 4))
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.gateway.fault = lambda path: "full" if path == GENERATE else ""
    time.sleep(scene.rng.uniform(3.0, 6.0))
    scene.gateway.fault = lambda path: "full" if path == GENERATE and scene.rng.random() < 0.5 else ""
    scene.recover(scene.progress(), "turns with half a queue", 40)
    scene.cost_nothing()
    scene.struck("requests that were refused", scene.gateway.spoiled["full"], 20)


@row("engine-garbage")
def garbage(scene: Scene) -> None:
    """One answer in eight is cut short, empty, HTML, binary, contradicts itself, or is a reset connection."""
    scene.open(latency=0.2, workers=(8, 4))
    kinds = (*GARBAGE, "broken", "reset")
    scene.gateway.fault = lambda path: scene.rng.choice(kinds) if path == GENERATE and scene.rng.random() < 0.12 else ""
    scene.submit(10)
    scene.recover(scene.progress(), "turns among garbage", 40)
    scene.wait(lambda: scene.ended() >= len(scene.expected), "the end of all jobs")
    scene.struck("kinds of garbage", len(scene.gateway.spoiled), 5)
    scene.faults += scene.gateway.spoiled.total() - len(scene.gateway.spoiled)


@row("engine-update")
def update(scene: Scene) -> None:
    """New weights in mid-run: with everything aborted, in a pause, and into a server that was restarted."""
    scene.open(latency=0.4, workers=(8, 4))
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.engine_post("/update_weight_version", new_version="1")
    scene.recover(lambda: "1" in scene.gateway.versions, "turns after an update", 40)
    scene.engine_post("/pause_generation", mode="in_place")
    scene.engine_post("/update_weights_from_disk", model_path="2", weight_version="2")
    scene.engine_post("/continue_generation")
    scene.recover(lambda: "2" in scene.gateway.versions, "turns after an update in a pause", 40)
    scene.kill_engine()
    scene.restart_engine()
    scene.engine_post("/update_weight_version", new_version="3")
    scene.recover(lambda: "3" in scene.gateway.versions, "turns after a restart with other weights", 40)
    scene.cost_nothing()
    scene.struck("new weights that sampled something", len(scene.gateway.versions & {"1", "2", "3"}), 3)


@row("engine-pause")
def pause(scene: Scene) -> None:
    """Paused for seconds in each of the three modes."""
    scene.open(latency=0.4, workers=(8, 4))
    scene.submit(10)
    for mode in scene.rng.sample(["abort", "retract", "in_place"], 3):
        scene.wait(scene.progress(), "a run that goes", 40)
        scene.engine_post("/pause_generation", mode=mode)
        scene.standstill("pauses", scene.rng.uniform(1.6, 2.8))
        scene.engine_post("/continue_generation")
        scene.recover(scene.progress(), f"turns after a pause ({mode})", 40)
    scene.cost_nothing()
