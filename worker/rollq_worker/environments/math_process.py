"""math-verify in processes of its own: in a worker nothing could interrupt a formula such as
9^{9^{9^9}}.

A process ends with the worker, and answers one question at a time. The kernel ends it at a question
that takes too much CPU; a later question starts another one. It knows no rows and no rewards.
"""

import json
import logging
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Semaphore
from typing import Any

MEMORY = 2 << 30
"""Bytes of memory for a question."""
PROCESSES = 4
"""Most processes of a worker. They share its CPUs, so a short formula seldom waits for the end of a
long one.
"""
READY = "ready\n"
RELATIVE = 1e-6
"""Largest difference of two equal numbers, as a share of the larger one."""


class MathProcesses:
    """Compares formulas, `limit_s` seconds of CPU for each question; used by several threads."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._free = Semaphore(PROCESSES)
        self._idle: list[subprocess.Popen[str]] = []
        """Processes without an open question. One whose reply was not read never comes back."""

    def same(self, answer: str, truth: str) -> bool | None:
        """True if the answer has the truth's value; None if the truth is not a formula.

        Raises ValueError if this takes too much time or memory, or math-verify fails. Raises
        RuntimeError if the process ended for another reason.
        """
        with self._free:
            reply = self._reply(json.dumps([answer, truth, self._limit_s]) + "\n")
        result: Any = json.loads(reply)
        if isinstance(result, str):
            raise ValueError(result)
        return None if result is None else bool(result)

    def close(self) -> None:
        """Ends the idle processes. The others end when nobody reads their replies."""
        while self._idle:
            _kill(self._idle.pop())

    def _reply(self, question: str) -> str:
        try:
            process = self._idle.pop()
        except IndexError:
            process = _start()
        reply = _ask(process, question)
        if reply:
            self._idle.append(process)
            return reply
        _close(process)
        if process.returncode == -signal.SIGPROF:
            raise ValueError(f"comparing it takes more than {self._limit_s:g} s of CPU")
        raise RuntimeError(f"the process of math-verify ended with {process.returncode}")


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
        raise RuntimeError(
            f"the process of math-verify does not start: it ended with {process.wait()}"
        )
    return process


def _ask(process: "subprocess.Popen[str]", question: str) -> str:
    """The next line of the process, "" if it has ended. An error kills it."""
    assert process.stdin is not None and process.stdout is not None, "they are pipes"
    try:
        process.stdin.write(question)
        process.stdin.flush()
        return process.stdout.readline()
    except BrokenPipeError:
        return ""
    except BaseException:
        _kill(process)
        raise


def _kill(process: "subprocess.Popen[str]") -> None:
    process.kill()
    _close(process)


def _close(process: "subprocess.Popen[str]") -> None:
    with suppress(BrokenPipeError), process:  # of a question that it did not read
        pass  # its pipes are closed, and its end is awaited


def _is_far(expected: Any, formula: Any) -> bool:
    """Two numbers differ by more than a millionth. math-verify's own bound is absolute, so it takes
    all tiny numbers for equal.
    """
    if not (getattr(expected, "is_number", False) and getattr(formula, "is_number", False)):
        return False
    if expected == formula:
        return False  # two infinities have no difference
    size = max(abs(expected.evalf()), abs(formula.evalf()))
    return bool(abs((expected - formula).evalf()) > RELATIVE * size)


def _serve() -> None:
    replies, sys.stdout = sys.stdout, sys.stderr
    from math_verify import parse, verify

    # It warns at each call without a time limit.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    replies.write(READY)
    replies.flush()
    for question in sys.stdin:
        answer, truth, limit_s = json.loads(question)
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # it has no handler, so it ends the process
        result: bool | str | None = None
        try:
            expected = parse(truth, parsing_timeout=None)  # its limit cannot interrupt a power
            if expected:
                formula = parse(answer, parsing_timeout=None)
                result = (
                    bool(formula)
                    and bool(verify(expected, formula, timeout_seconds=None))
                    and not _is_far(expected[0], formula[0])
                )
        except Exception as e:  # strange formulas raise many kinds, also MemoryError
            result = f"math-verify fails: {type(e).__name__}: {e}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(result) + "\n")
        replies.flush()


if __name__ == "__main__":
    _serve()
