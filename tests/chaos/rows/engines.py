"""An engine that is killed, hangs, is full, answers garbage, or gets new weights."""

import os
import signal
import time

from rollq.processes.child import Child
from rollq.processes.embedded_redis import free_port
from tests.chaos.engine_proxy import GARBAGE, GENERATE
from tests.chaos.fault_run import FaultRun
from tests.chaos.rows import row


@row("engine-kill")
def kill(run: FaultRun) -> None:
    """kill -9 with requests in flight, then away for some seconds; twice."""
    run.start_processes(latency=0.3, workers=(8, 4))
    run.submit(10)
    for _ in range(2):
        run.wait_for_progress()
        run.wait(lambda: run.engine_proxy.in_flight > 3, "requests in flight", 20)
        interrupted = run.engine_proxy.interrupted
        run.send_signal(run.engine)
        run.engine_proxy.refuse()
        time.sleep(run.rng.uniform(1.0, 5.0))
        run.check(
            run.engine_proxy.interrupted > interrupted,
            "the fault did not happen: no request was in flight",
        )
        run.restart_engine()
        run.measure_recovery(run.progress(), "turns after the engine's return", 40)
    run.check_no_failures()


@row("teacher-kill")
def teacher(run: FaultRun) -> None:
    """The engine of a teacher is killed while it scores, twice, and Redis in between."""
    port = str(free_port())

    def start() -> Child:
        return run.start_command("teacher", "engine", "--port", port, "--latency", "0.5")

    run.start_processes(latency=0.3, workers=())
    engine = start()
    models = {"ROLLQ_MODEL_ENGINES": f"large=http://127.0.0.1:{port}"}
    for slots in (8, 4):
        run.start_worker(slots, env=models)
    run.submit(10, 3, "--set", 'teachers.math={"model": "large"}')
    for faulty in ("teacher", "redis", "teacher"):
        ended = run.ended()
        run.wait(lambda ended=ended: run.ended() > ended, "an episode with its scores", 60)  # type: ignore[misc]
        if faulty == "redis":
            run.send_signal(run.redis)
            time.sleep(run.rng.uniform(0.5, 4.0))
            run.start_redis()
        else:
            run.send_signal(engine)
            time.sleep(run.rng.uniform(1.0, 5.0))
            engine = start()
        ended = run.ended()
        run.measure_recovery(lambda ended=ended: run.ended() > ended, "an episode's end", 60)  # type: ignore[misc]
    run.check_no_failures()


@row("engine-hang")
def hang(run: FaultRun) -> None:
    """Frozen with requests in flight until both workers notice, then continued; frozen again,
    killed and replaced.

    The workers ask after 5 s instead of 60, and wait 2 s for an answer instead of 10, to keep the
    row short.
    """
    constants = (
        "engine.hang_watch.SLOW_S=5 engine.hang_watch.INTERVAL_S=1 "
        "engine.sglang.server.QUESTION_TIMEOUT_S=2"
    )
    settings = {
        "CHAOS_SETTINGS": " ".join(f"rollq_worker.{constant}" for constant in constants.split())
    }
    run.start_processes(latency=0.3, workers=())
    workers = [run.start_worker(slots, env=settings) for slots in (8, 4)]
    run.submit(10)
    run.wait_for_progress()
    run.wait(
        lambda: all(len(run.leases_of(worker)) >= 4 for worker in workers),
        "jobs of both workers",
        40,
    )
    run.send_signal(run.engine, signal.SIGSTOP)
    for worker in workers:
        run.wait(lambda w=worker: _has_noticed(w), "a worker that notices", 90)  # type: ignore[misc]
    run.wait(
        lambda: run.engine_proxy.in_flight == 0,
        "the end of all requests to an engine that hangs",
        20,
    )
    os.kill(run.engine.pid, signal.SIGCONT)
    run.measure_recovery(run.progress(), "turns after the engine woke up", 40)
    run.wait(lambda: run.engine_proxy.in_flight > 3, "requests in flight", 20)
    run.send_signal(run.engine, signal.SIGSTOP)
    interrupted = run.engine_proxy.interrupted
    run.count_standstill("engines that hung", 3)
    run.send_signal(run.engine)
    run.engine_proxy.refuse()
    run.restart_engine()
    run.measure_recovery(run.progress(), "turns after the engine was replaced", 40)
    run.check(
        run.engine_proxy.interrupted > interrupted,
        "the fault did not happen: no request was in flight",
    )
    run.check_no_failures()


def _has_noticed(worker: Child) -> bool:
    """Whether the worker has given up its requests to an engine that hangs."""
    return "does not answer, time 2" in worker.log.read_text(errors="replace")


@row("engine-503")
def full(run: FaultRun) -> None:
    """A full queue: 503 for all requests for some seconds, then for half of them."""
    run.start_processes(latency=0.2, workers=(8, 4))
    run.submit(10)
    run.wait_for_progress()
    run.engine_proxy.fault = lambda path: "full" if path == GENERATE else ""
    time.sleep(run.rng.uniform(3.0, 6.0))
    run.engine_proxy.fault = lambda path: (
        "full" if path == GENERATE and run.rng.random() < 0.5 else ""
    )
    run.measure_recovery(run.progress(), "turns with half of the requests refused", 40)
    run.check_no_failures()
    run.count_fault("requests that were refused", run.engine_proxy.damaged["full"], 20)


@row("engine-garbage")
def garbage(run: FaultRun) -> None:
    """One reply in eight is cut short, empty, HTML, binary, inconsistent, or a reset connection."""
    run.start_processes(latency=0.2, workers=(8, 4))
    kinds = (*GARBAGE, "broken", "reset")
    run.engine_proxy.fault = lambda path: (
        run.rng.choice(kinds) if path == GENERATE and run.rng.random() < 0.12 else ""
    )
    run.submit(10)
    run.measure_recovery(run.progress(), "turns among garbage", 40)
    run.wait_for_end()
    run.count_fault("kinds of garbage", len(run.engine_proxy.damaged), 5)
    run.faults += run.engine_proxy.damaged.total() - len(run.engine_proxy.damaged)


@row("engine-update")
def update(run: FaultRun) -> None:
    """New weights in mid-run: with all generations aborted, during a pause, and after a restart."""
    run.start_processes(latency=0.4, workers=(8, 4))
    run.submit(10)
    run.wait_for_progress()
    run.engine_post("/update_weight_version", new_version="1")
    run.measure_recovery(lambda: "1" in run.engine_proxy.versions, "turns after an update", 40)
    run.engine_post("/pause_generation", mode="in_place")
    run.engine_post(
        "/update_weights_from_disk", model_path="2", weight_version="2", flush_cache=False
    )
    run.engine_post("/continue_generation")
    run.measure_recovery(
        lambda: "2" in run.engine_proxy.versions, "turns after an update in a pause", 40
    )
    run.kill_engine()
    run.restart_engine()
    run.engine_post("/update_weight_version", new_version="3")
    run.measure_recovery(
        lambda: "3" in run.engine_proxy.versions, "turns after a restart with other weights", 40
    )
    run.check_no_failures()
    run.count_fault(
        "new weights that sampled something", len(run.engine_proxy.versions & {"1", "2", "3"}), 3
    )


@row("engine-pause")
def pause(run: FaultRun) -> None:
    """Paused for seconds in each of the three modes."""
    run.start_processes(latency=0.4, workers=(8, 4))
    run.submit(10)
    for mode in run.rng.sample(["abort", "retract", "in_place"], 3):
        run.wait_for_progress()
        run.engine_post("/pause_generation", mode=mode)
        run.count_standstill("pauses", run.rng.uniform(1.6, 2.8))
        run.engine_post("/continue_generation")
        run.measure_recovery(run.progress(), f"turns after a pause ({mode})", 40)
    run.check_no_failures()
