"""math-verify in a process of its own: in a worker nothing could interrupt a formula such as 9^{9^{9^9}}.

A process ends with the worker, and answers one question at a time. The kernel ends it at a question that takes too
much CPU; the next question starts another one. It knows no rows and no rewards.
"""

import json
import logging
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Lock
from typing import Any

MEMORY = 2 << 30
"""Bytes of memory for a question."""
READY = "ready\n"


class MathProcess:
    """Compares formulas, `limit_s` seconds of CPU for each question; used by several threads."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def same(self, answer: str, truth: str) -> bool | None:
        """Whether the answer has the truth's value; None if the truth is no formula.

        Raises ValueError when this takes too much time or memory, or math-verify fails, and RuntimeError when the
        process ended for another reason.
        """
        with self._lock:
            process = self._process = self._process or _start()
            reply = _ask(process, json.dumps([answer, truth, self._limit_s]) + "\n")
            if not reply:
                self._process = None
                with suppress(BrokenPipeError), process:  # of a question that it did not read
                    pass  # its pipes are closed
                if process.returncode == -signal.SIGPROF:
                    raise ValueError(f"comparing it takes more than {self._limit_s:g} s of CPU")
                raise RuntimeError(f"the process of math-verify ended with {process.returncode}")
        found: Any = json.loads(reply)
        if isinstance(found, str):
            raise ValueError(found)
        return found if found is None else bool(found)

    def close(self) -> None:
        """End the process."""
        if self._process:
            with self._process as process:
                process.kill()
            self._process = None


def _start() -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
    )
    if _ask(process, "") != READY:
        raise RuntimeError(f"the process of math-verify does not start: it ended with {process.wait()}")
    return process


def _ask(process: "subprocess.Popen[str]", question: str) -> str:
    """The next line that it writes; "": it has ended."""
    assert process.stdin is not None and process.stdout is not None, "they are pipes"
    try:
        process.stdin.write(question)
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()


def _serve() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call without a time limit
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    replies.write(READY)
    replies.flush()
    for question in sys.stdin:
        answer, truth, limit_s = json.loads(question)
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # it has no handler, so it ends the process
        found: bool | str | None = None
        try:
            if right := parse(truth, parsing_timeout=None):  # its own time limit cannot interrupt a large power
                said = parse(answer, parsing_timeout=None)
                found = bool(said) and bool(verify(right, said, timeout_seconds=None))
        except Exception as e:  # of many kinds, for strange formulas; also MemoryError and RecursionError
            found = f"math-verify fails: {type(e).__name__}: {e}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(found) + "\n")
        replies.flush()


if __name__ == "__main__":
    _serve()
