"""A profile of this process: which code its CPU time goes to, as a file for https://www.speedscope.app.

py-spy samples from outside where it is installed. Otherwise a thread here asks the kernel for each thread's CPU time
and gives what was added to the stack that it then finds. Threads that wait cost nothing and are not in the profile.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rollq.errors import SettingsError

RATE = 100
"""Samples a second."""
PR_SET_PTRACER = 0x59616D61
"""Where the kernel lets only parents trace their children (Yama), this names the process that may trace its parent."""
WRITING_S = 30.0
"""Seconds for py-spy to write its file."""
SCHEMA = "https://www.speedscope.app/file-format-schema.json"

Stack = tuple[CodeType, ...]


@contextmanager
def profiling(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Profile the process while the block runs, then write `path`. Raises SettingsError when it cannot be written."""
    try:
        path.open("ab").close()
    except OSError as e:
        raise SettingsError(f"--profile {path}: {e.strerror}: name a file in a folder that can be written") from e
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    say(f"profiling into {path}, by {'py-spy' if program else 'sampling its threads'}")
    with _py_spy(program, path, say) if program else CpuSampler(path):
        yield
    say(f"profile: {path}: open it at https://www.speedscope.app")


@contextmanager
def _py_spy(program: str, path: Path, say: Callable[[str], None]) -> Iterator[None]:
    words = [program, "record", "--gil", "--rate", str(RATE), "--format", "speedscope", "--output", str(path)]
    words += ["--duration", "unlimited", "--pid", str(os.getpid())]
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, child.pid, 0, 0, 0)
    try:
        yield
    finally:
        child.send_signal(signal.SIGINT)  # it writes its file then
        try:
            _, said = child.communicate(timeout=WRITING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            _, said = child.communicate()
        if child.returncode:
            say(f"py-spy ended with {child.returncode}: {said.decode(errors='replace')[-500:]}")


class CpuSampler:
    """Samples the CPU time of all Python threads of this process by stack. Linux only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: defaultdict[Stack, float] = defaultdict(float)
        self._last: dict[int, float] = {}
        """CPU seconds of each thread at its last sample, by native id."""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rollq-profile", daemon=True)

    def __enter__(self) -> "CpuSampler":
        if not sys.platform.startswith("linux"):
            raise SettingsError("--profile needs py-spy on this system: pip install py-spy")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._path.write_text(json.dumps(self.speedscope()))

    def sample(self) -> None:
        """Give the CPU time that each thread has used since the last sample to its present stack."""
        frames, seen = sys._current_frames(), {}
        for thread in threading.enumerate():
            tid, frame = thread.native_id, frames.get(thread.ident or 0)
            if tid is None or frame is None or thread is self._thread:
                continue
            try:
                seen[tid] = seconds = time.clock_gettime(_cpu_clock(tid))
            except OSError:  # it has ended
                continue
            if (used := seconds - self._last.get(tid, seconds)) > 0:
                self._seconds[_stack(frame)] += used
        self._last = seen

    def speedscope(self) -> dict[str, Any]:
        """The samples in speedscope's file format."""
        frames: dict[CodeType, int] = {}
        samples = [[frames.setdefault(code, len(frames)) for code in stack] for stack in self._seconds]
        return {
            "$schema": SCHEMA,
            "exporter": "rollq",
            "shared": {
                "frames": [
                    {"name": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno} for code in frames
                ]
            },
            "profiles": [
                {
                    "type": "sampled",
                    "name": "CPU of all threads",
                    "unit": "seconds",
                    "startValue": 0,
                    "endValue": sum(self._seconds.values()),
                    "samples": samples,
                    "weights": list(self._seconds.values()),
                }
            ],
        }

    def _loop(self) -> None:
        while not self._end.wait(1 / RATE):
            self.sample()


def _cpu_clock(tid: int) -> int:
    """Linux's clock of one thread's CPU time (CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED in the kernel's headers)."""
    return ~tid << 3 | 6


def _stack(frame: FrameType | None) -> Stack:
    """The functions from the outermost one to that of the frame."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(reversed(codes))
