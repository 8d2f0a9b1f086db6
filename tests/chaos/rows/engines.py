"""The engine killed, hung, overloaded, talking nonsense, or given new weights."""

import os
import signal
import time

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
        scene.faults += 1
        scene.kill_engine()
        time.sleep(scene.rng.uniform(1.0, 5.0))
        scene.restart_engine()
        scene.recover(scene.progress(), "turns after the engine's return", 40)
    scene.cost_nothing()


@row("engine-hang")
def hang(scene: Scene) -> None:
    """Frozen with requests in flight, then awake; frozen again, then killed and replaced."""
    scene.open(latency=0.3, workers=(8, 4))
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.kill(scene.engine, signal.SIGSTOP)
    time.sleep(scene.rng.uniform(4.0, 8.0))
    os.kill(scene.engine.pid, signal.SIGCONT)
    scene.recover(scene.progress(), "turns after the engine woke up", 40)
    scene.kill(scene.engine, signal.SIGSTOP)
    time.sleep(3)
    scene.kill_engine()
    scene.restart_engine()
    scene.recover(scene.progress(), "turns after the engine was replaced", 40)


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


@row("engine-garbage")
def garbage(scene: Scene) -> None:
    """One answer in eight is cut short, empty, HTML, binary, contradicts itself, or is a reset connection."""
    scene.open(latency=0.2, workers=(8, 4))
    kinds = (*GARBAGE, "broken", "reset")
    scene.gateway.fault = lambda path: scene.rng.choice(kinds) if path == GENERATE and scene.rng.random() < 0.12 else ""
    scene.submit(10)
    scene.recover(scene.progress(), "turns among garbage", 40)


@row("engine-update")
def update(scene: Scene) -> None:
    """New weights in mid-run: with everything aborted, in a pause, and into a server that was restarted."""
    scene.open(latency=0.4, workers=(8, 4))
    scene.submit(10)
    scene.wait(scene.progress(), "a run that goes", 40)
    scene.engine_post("/update_weight_version", new_version="1")
    scene.recover(scene.progress(), "turns after an update", 40)
    scene.engine_post("/pause_generation", mode="in_place")
    scene.engine_post("/update_weights_from_disk", model_path="2", weight_version="2")
    scene.engine_post("/continue_generation")
    scene.recover(scene.progress(), "turns after an update in a pause", 40)
    scene.faults += 3
    scene.kill_engine()
    scene.restart_engine()
    scene.engine_post("/update_weight_version", new_version="3")
    scene.recover(scene.progress(), "turns after a restart with other weights", 40)


@row("engine-pause")
def pause(scene: Scene) -> None:
    """Paused for seconds in each of the three modes."""
    scene.open(latency=0.4, workers=(8, 4))
    scene.submit(10)
    for mode in scene.rng.sample(["abort", "retract", "in_place"], 3):
        scene.wait(scene.progress(), "a run that goes", 40)
        scene.engine_post("/pause_generation", mode=mode)
        time.sleep(scene.rng.uniform(1.0, 2.5))
        scene.engine_post("/continue_generation")
        scene.faults += 1
        scene.recover(scene.progress(), f"turns after a pause ({mode})", 40)
    scene.cost_nothing()
