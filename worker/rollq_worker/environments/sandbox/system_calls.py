"""The system calls that a sandbox refuses, as a seccomp filter for bwrap.

They would take memory that no limit counts (memory files, System V's shared memory, new tmpfs mounts), or reach parts
of the kernel that commands do not need, such as namespaces of their own.
"""

import platform
import struct

from rollq.errors import JobFailure

CALLS = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "mount": (165, 40),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "userfaultfd": (323, 282),
}
"""Numbers of the refused calls, for each of MACHINES."""
CLONE = (56, 220)
CLONE3 = 435
"""Its arguments cannot be seen by a filter, so it does not exist in a sandbox; programs take CLONE then."""
NEW_USER_NAMESPACE = 0x10000000
"""A flag of CLONE."""
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls a machine (AUDIT_ARCH). The filter kills processes of other ones, such as 32-bit programs."""
FOREIGN = 0x40000000
"""Numbers from here on are the x32 calls of x86_64, which would pass by the filter."""

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of a BPF program
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
ENDS = {"allow": 0x7FFF0000, "refuse": 0x00050001, "missing": 0x00050026, "kill": 0x80000000}
"""What the filter returns at its end: EPERM for `refuse`, ENOSYS for `missing`."""


def refusing_filter() -> bytes:
    """The program for this machine. Raises JobFailure on others than MACHINES."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise JobFailure(f"sandboxed commands run on {' and '.join(MACHINES)} machines, not on {machine}")
    column = list(MACHINES).index(machine)
    steps: list[tuple[int, int, str, str]] = [  # instruction, value, where to go if it holds and if not ("": on)
        (LOAD, MACHINE_AT, "", ""),
        (EQUAL, MACHINES[machine], "", "kill"),
        (LOAD, NUMBER_AT, "", ""),
        (AT_LEAST, FOREIGN, "refuse", ""),
        (EQUAL, CLONE3, "missing", ""),
        *((EQUAL, numbers[column], "refuse", "") for numbers in CALLS.values()),
        (EQUAL, CLONE[column], "", "allow"),
        (LOAD, FIRST_ARGUMENT_AT, "", ""),
        (ANY_BIT, NEW_USER_NAMESPACE, "refuse", "allow"),
    ]
    ends = {end: len(steps) + n for n, end in enumerate(ENDS)}
    program = [
        (code, *(ends[end] - at - 1 if end else 0 for end in (holds, fails)), value)
        for at, (code, value, holds, fails) in enumerate(steps)
    ]
    program += [(RETURN, 0, 0, value) for value in ENDS.values()]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
