"""The watchdog that ends a worker process, whatever its threads do; tested on small processes."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading, time
from rollq_worker.process import shutdown
shutdown.RELEASE_AFTER_S, shutdown.EXIT_AFTER_S = {release_s}, {exit_s}
watched = shutdown.Shutdown("w", threading.Event())
watched.install()
say = lambda word: os.write(1, f"{{word}}\\n".encode())  # a print in a daemon thread may abort \
the interpreter's exit
watched.ready(
    stop_consuming=lambda: say("stopped"), end_engine_waits=lambda: {end_engine_waits}, \
release=lambda: {release}
)
say("begun")
{after}
watched.draining.wait()
{last}
"""


NO_LIMIT_NEAR = {
    "release_s": 0.3,
    "exit_s": 120.0,
    "end_engine_waits": "None",
    "release": "say('released')",
    "after": "",
    "last": "time.sleep(120)",
}


def program(**changes: object) -> "subprocess.Popen[str]":
    """Runs a process up to "begun"."""
    code = PROGRAM.format(**NO_LIMIT_NEAR | changes)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Exit code, rest of the output, errors. communicate() would miss what readline()
    has buffered.
    """
    assert process.stdout is not None and process.stderr is not None
    with process:
        try:
            code = process.wait(timeout=60)
        finally:
            process.kill()
        return code, process.stdout.read(), process.stderr.read()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda n: n.name
)
def test_what_still_runs_is_released_and_the_process_leaves(number: signal.Signals) -> None:
    process = program()
    process.send_signal(number)
    code, out, err = ended(process)
    assert (code, out) == (0, "stopped\nreleased\n")
    assert "stopping; running jobs go back to the queue" in err


def test_it_leaves_by_itself_when_everything_ended_in_time() -> None:
    process = program(last="sys.exit(3)", release_s=120)
    process.terminate()
    assert ended(process)[0] == 3


def test_a_release_that_hangs_holds_nothing_up() -> None:
    process = program(release="time.sleep(120)", end_engine_waits="time.sleep(120)", exit_s=0.6)
    process.terminate()
    assert ended(process)[:2] == (0, "stopped\n")


STUCK = (
    "import ctypes; lock = ctypes.create_string_buffer(64); "
    "[ctypes.CDLL(None).pthread_mutex_lock(lock) for _ in 'ab']"
)


@pytest.mark.skipif(sys.platform != "linux", reason="zeros are a mutex on Linux only")
def test_signals_are_seen_while_the_main_thread_is_stuck() -> None:
    """Python runs no handler while its main thread is in a call that no signal ends: here it waits
    for its own lock.
    """
    process = program(last=STUCK, release_s=120)
    process.terminate()
    assert process.stdout is not None and process.stdout.readline() == "stopped\n"
    process.terminate()
    code, out, err = ended(process)
    assert (code, out) == (1, "") and "second signal, leaving at once" in err


def test_it_can_ask_to_stop_without_a_signal() -> None:
    process = program(after="watched.request(75)")
    assert ended(process)[:2] == (75, "stopped\nreleased\n")


def test_it_stops_although_nobody_reads_its_messages() -> None:
    with program() as process:
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


NO_THREADS = """
def refuse(thread): raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
"""


def test_it_stops_in_time_where_the_process_may_have_no_further_thread() -> None:
    process = program(after=NO_THREADS, last="time.sleep(120)", exit_s=0.6)
    process.terminate()
    assert ended(process)[:2] == (0, "stopped\n")
