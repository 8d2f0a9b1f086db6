"""A worker that has loaded everything."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import gc
from rollq_worker.process.memory import freeze_loaded_objects

class Cycle:
    def __init__(self):
        self.own = self

kept = [Cycle() for _ in range(1000)]
del kept[500:]
freeze_loaded_objects()
print(gc.get_freeze_count() > 500, sum(type(found) is Cycle for found in gc.get_objects()))
one = Cycle()
freeze_loaded_objects(collect=False)
print(sum(type(found) is Cycle for found in gc.get_objects()))
"""


def test_what_stays_is_not_walked_again_and_what_was_freed_is_gone() -> None:
    said = subprocess.check_output([sys.executable, "-c", SCRIPT], text=True).split()
    assert said == ["True", "0", "0"]


THREADS = """
import ctypes
from threading import Barrier, Thread
from rollq_worker.process.memory import use_one_arena

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
found, all_run = [], Barrier(8)

def allocate():
    all_run.wait()
    found.append(libc.malloc(1000))
    all_run.wait()

use_one_arena()
threads = [Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
with open("/proc/self/maps") as maps:
    heap = next(line.split()[0] for line in maps if line.endswith("[heap]\\n"))
low, high = (int(end, 16) for end in heap.split("-"))
print(sum(low <= at < high for at in found))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the option is glibc's")
def test_all_threads_allocate_from_one_heap() -> None:
    assert subprocess.check_output([sys.executable, "-c", THREADS], text=True).split() == ["8"]
    alone = THREADS.replace("\nuse_one_arena()", "")
    assert subprocess.check_output([sys.executable, "-c", alone], text=True).split() != ["8"]
