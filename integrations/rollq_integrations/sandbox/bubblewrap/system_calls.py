"""The system calls that are missing in a sandbox, as a seccomp filter for bwrap.

The filter is built by libseccomp. It kills processes of other machines, such as 32-bit programs.
"""

import errno
import os
import socket
import tempfile

from rollq.errors import JobFailure

UNCOUNTED_MEMORY = """
    shmget semget msgget mq_open memfd_create memfd_secret inotify_init inotify_init1 fanotify_init
    io_setup io_uring_setup landlock_create_ruleset remap_file_pages vmsplice userfaultfd
"""
"""Calls that take memory of the kernel which no limit counts."""
WAYS_OUT = """
    acct add_key adjtimex bpf chroot clock_adjtime clock_settime clone3 delete_module finit_module
    fsconfig fsmount fsopen fspick init_module ioperm iopl kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind migrate_pages modify_ldt mount mount_setattr move_mount move_pages
    name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_vm_readv process_vm_writev quotactl reboot request_key set_mempolicy setdomainname
    sethostname setns settimeofday swapoff swapon sysfs syslog umount2 unshare uselib ustat vhangup
"""
"""Calls that reach out of the sandbox, or into parts of the kernel that commands do not need."""
CLONE_NEWUSER = 0x10000000
"""The flag of clone that makes a user namespace. That of clone3 cannot be seen by a filter, and
programs take clone without it.
"""
SHARED_WITHOUT_FILE = 0x21
"""Flags of mmap, MAP_SHARED and MAP_ANONYMOUS: such memory stays when most of its mapping is gone,
and is counted no more. (A mapping of /dev/zero is the same; see `box`.)
"""
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
"""The families of sockets. A network namespace does not hold the others, such as AF_VSOCK."""
PROTOCOLS = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
"""The protocols of sockets. For netlink 0 is its routes, which resolvers ask for."""


def system_call_filter() -> bytes:
    """The program for this machine. Raises JobFailure without libseccomp."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError) as e:
        raise JobFailure(
            "sandboxed commands need pyseccomp and libseccomp (pip install pyseccomp, apt-get "
            f"install libseccomp2): {e}"
        ) from e
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in (UNCOUNTED_MEMORY + WAYS_OUT).split():
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) != -1:
            rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), name)

    refuse = pyseccomp.ERRNO(errno.EPERM)
    has_flags = pyseccomp.MASKED_EQ
    rules.add_rule(refuse, "clone", pyseccomp.Arg(0, has_flags, CLONE_NEWUSER, CLONE_NEWUSER))
    both = SHARED_WITHOUT_FILE
    rules.add_rule(refuse, "mmap", pyseccomp.Arg(3, has_flags, both, both))

    no_family = pyseccomp.ERRNO(errno.EAFNOSUPPORT)
    for call in ("socket", "socketpair"):
        for argument, allowed in ((0, FAMILIES), (2, PROTOCOLS)):
            last = max(allowed)
            rules.add_rule(no_family, call, pyseccomp.Arg(argument, pyseccomp.GT, last))
            for value in {*range(last)} - {*allowed}:
                rules.add_rule(no_family, call, pyseccomp.Arg(argument, pyseccomp.EQ, value))
        is_netlink = pyseccomp.Arg(0, pyseccomp.EQ, socket.AF_NETLINK)
        rules.add_rule(no_family, call, is_netlink, pyseccomp.Arg(2, pyseccomp.GT, 0))

    with tempfile.TemporaryFile() as program:
        rules.export_bpf(program)
        return os.pread(program.fileno(), os.fstat(program.fileno()).st_size, 0)
