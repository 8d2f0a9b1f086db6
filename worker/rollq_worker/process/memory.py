"""Keeps a worker's memory small, and the collector away from objects that live as long as the
process.

It knows glibc's allocator; with another one, `use_one_arena` does nothing, and no freed memory is
given back.
"""

import ctypes
import gc
from contextlib import suppress


def use_one_arena() -> None:
    """Lets all threads that start from now on allocate from one heap.

    By default glibc gives threads up to eight heaps a core, and memory that is free in one serves
    no other. Threads hardly contend for the one, because the interpreter's lock lets one of them
    run at a time.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX (malloc.h)


def freeze_loaded_objects(collect: bool = True) -> None:
    """Lets the collector pass over everything that is loaded, and gives freed memory back.

    `collect`: free cycles first. That stops all threads for a moment, so it is for a process that
    plays nothing yet.
    """
    if collect:
        gc.collect()
    gc.freeze()
    # An episode's objects live for all its turns, so looks for cycles among them find little. With
    # Python's own thresholds they are frequent, and at a thousand episodes each stops all threads
    # for 0.1 s.
    gc.set_threshold(20_000, 20, 50)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # without the interpreter's lock
