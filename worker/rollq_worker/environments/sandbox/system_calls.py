"""The system calls that a sandbox refuses, as a seccomp filter for bwrap.

They would take memory that no limit counts (memory files, System V's shared memory, new tmpfs mounts), or reach parts
of the kernel that commands do not need. Without a filter for this kind of machine, JobFailure is raised.
"""

import platform
import struct

from rollq.errors import JobFailure

NUMBERS = {
    "x86_64": (
        0xC000003E,
        {
            "memfd_create": 319,
            "shmget": 29,
            "mount": 165,
            "io_uring_setup": 425,
            "bpf": 321,
            "perf_event_open": 298,
            "keyctl": 250,
            "add_key": 248,
            "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "memfd_create": 279,
            "shmget": 194,
            "mount": 40,
            "io_uring_setup": 425,
            "bpf": 280,
            "perf_event_open": 241,
            "keyctl": 219,
            "add_key": 217,
            "userfaultfd": 282,
        },
    ),
}
"""The kernel's name of the machine (AUDIT_ARCH), and the numbers of the calls."""
ON_ALL = {"open_tree": 428, "fsopen": 430, "memfd_secret": 447}
FOREIGN = 0x40000000
"""Numbers from here on are the x32 calls of x86_64, which would pass by the filter."""

LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # instructions of a BPF program
NUMBER_AT, ARCHITECTURE_AT = 0, 4
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000  # 1 is EPERM


def refusing_filter() -> bytes:
    """The program. Raises JobFailure on other machines than those of NUMBERS."""
    machine = platform.machine()
    if machine not in NUMBERS:
        raise JobFailure(f"sandboxed commands run on {' and '.join(NUMBERS)} machines, not on {machine}")
    architecture, own = NUMBERS[machine]
    calls = sorted({*own.values(), *ON_ALL.values()})
    program = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
        (AT_LEAST, len(calls) + 1, 0, FOREIGN),
        *((EQUAL, len(calls) - n, 0, call) for n, call in enumerate(calls)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
