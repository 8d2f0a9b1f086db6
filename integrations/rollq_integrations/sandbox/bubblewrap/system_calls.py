"""The system calls that exist in a sandbox, as a seccomp filter for bwrap. All others are missing
there (ENOSYS).

Missing are calls that take memory of the kernel which no limit counts (System V's and POSIX's
queues and semaphores, memory files, inotify, landlock's rules, io_uring), that reach out of the
sandbox, or that commands do not need. A call that a later kernel adds is missing until it is listed
here.
"""

import platform
import struct
from collections.abc import Iterator

from rollq.errors import JobFailure

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls a machine (AUDIT_ARCH). The filter kills processes of other ones, such as
32-bit programs.
"""
ALLOWED = """
read 0 63  write 1 64  readv 19 65  writev 20 66  pread64 17 67  pwrite64 18 68  preadv 295 69
pwritev 296 70  preadv2 327 286  pwritev2 328 287  open 2 -  openat 257 56  openat2 437 437  \
creat 85 -
close 3 57  close_range 436 436  dup 32 23  dup2 33 -  dup3 292 24  pipe 22 -  pipe2 293 59  \
fcntl 72 25
flock 73 32  ioctl 16 29  lseek 8 62  fsync 74 82  fdatasync 75 83  sync_file_range 277 84  \
fadvise64 221 223
readahead 187 213  fallocate 285 47  truncate 76 45  ftruncate 77 46  sendfile 40 71  splice 275 76
tee 276 77  copy_file_range 326 285  stat 4 -  fstat 5 80  lstat 6 -  newfstatat 262 79  statx \
332 291
statfs 137 43  fstatfs 138 44  access 21 -  faccessat 269 48  faccessat2 439 439  getcwd 79 17  \
chdir 80 49
fchdir 81 50  getdents 78 -  getdents64 217 61  rename 82 -  renameat 264 38  renameat2 316 276  \
mkdir 83 -
mkdirat 258 34  rmdir 84 -  link 86 -  linkat 265 37  unlink 87 -  unlinkat 263 35  symlink 88 -
symlinkat 266 36  readlink 89 -  readlinkat 267 78  mknod 133 -  mknodat 259 33  chmod 90 -  \
fchmod 91 52
fchmodat 268 53  fchmodat2 452 452  chown 92 -  fchown 93 55  lchown 94 -  fchownat 260 54  umask \
95 166
utime 132 -  utimes 235 -  futimesat 261 -  utimensat 280 88  setxattr 188 5  lsetxattr 189 6  \
fsetxattr 190 7
getxattr 191 8  lgetxattr 192 9  fgetxattr 193 10  listxattr 194 11  llistxattr 195 12  \
flistxattr 196 13
removexattr 197 14  lremovexattr 198 15  fremovexattr 199 16  mprotect 10 226  munmap 11 215
brk 12 214  mremap 25 216  msync 26 227  mincore 27 232  madvise 28 233  mlock 149 228  mlock2 \
325 284
munlock 150 229  mlockall 151 230  munlockall 152 231  pkey_mprotect 329 288  pkey_alloc 330 289
pkey_free 331 290  membarrier 324 283  poll 7 -  ppoll 271 73  select 23 -  pselect6 270 72
epoll_create 213 -  epoll_create1 291 20  epoll_ctl 233 21  epoll_wait 232 -  epoll_pwait 281 22
epoll_pwait2 441 441  eventfd 284 -  eventfd2 290 19  signalfd 282 -  signalfd4 289 74  \
timerfd_create 283 85
timerfd_settime 286 86  timerfd_gettime 287 87  connect 42 203  accept 43 202  accept4 288 242  \
bind 49 200
listen 50 201  sendto 44 206  recvfrom 45 207  sendmsg 46 211  recvmsg 47 212  sendmmsg 307 269
recvmmsg 299 243  shutdown 48 210  getsockname 51 204  getpeername 52 205  setsockopt 54 208  \
getsockopt 55 209
fork 57 -  vfork 58 -  execve 59 221  execveat 322 281  exit 60 93  exit_group 231 94  wait4 61 260
waitid 247 95  kill 62 129  tkill 200 130  tgkill 234 131  pidfd_open 434 434  pidfd_send_signal \
424 424
getpid 39 172  getppid 110 173  gettid 186 178  getpgid 121 155  setpgid 109 154  getpgrp 111 -
getsid 124 156  setsid 112 157  set_tid_address 218 96  set_robust_list 273 99  get_robust_list \
274 100
futex 202 98  futex_waitv 449 449  rseq 334 293  arch_prctl 158 -  prctl 157 167  ptrace 101 117
seccomp 317 277  personality 135 92  capget 125 90  capset 126 91  getuid 102 174  geteuid 107 175
getgid 104 176  getegid 108 177  getgroups 115 158  setuid 105 146  setgid 106 144  setreuid 113 145
setregid 114 143  setresuid 117 147  setresgid 119 149  getresuid 118 148  getresgid 120 150  \
setgroups 116 159
setfsuid 122 151  setfsgid 123 152  rt_sigaction 13 134  rt_sigprocmask 14 135  rt_sigreturn 15 139
rt_sigpending 127 136  rt_sigtimedwait 128 137  rt_sigqueueinfo 129 138  rt_tgsigqueueinfo 297 240
rt_sigsuspend 130 133  sigaltstack 131 132  restart_syscall 219 128  pause 34 -  alarm 37 -  \
getitimer 36 102
setitimer 38 103  timer_create 222 107  timer_settime 223 110  timer_gettime 224 108  \
timer_getoverrun 225 109
timer_delete 226 111  nanosleep 35 101  clock_nanosleep 230 115  clock_gettime 228 113  \
clock_getres 229 114
gettimeofday 96 169  time 201 -  times 100 153  sched_yield 24 124  sched_getaffinity 204 123
sched_setaffinity 203 122  sched_getparam 143 121  sched_setparam 142 118  sched_getscheduler 145 \
120
sched_setscheduler 144 119  sched_getattr 315 275  sched_setattr 314 274  sched_get_priority_max \
146 125
sched_get_priority_min 147 126  sched_rr_get_interval 148 127  getpriority 140 141  setpriority \
141 140
ioprio_get 252 31  ioprio_set 251 30  getcpu 309 168  getrlimit 97 163  setrlimit 160 164  \
prlimit64 302 261
getrusage 98 165  uname 63 160  sysinfo 99 179  getrandom 318 278
"""
"""Each call's name, and its number on each of MACHINES (-: there is none)."""
CLONE, MMAP, SOCKETS = (56, 220), (9, 222), ((41, 198), (53, 199))
"""The numbers of clone, mmap, and socket and socketpair, which are allowed with some arguments
only.
"""
NEW_USER_NAMESPACE = 0x10000000
"""A flag of clone that is refused. That of clone3 cannot be seen by a filter, and programs take
clone without it.
"""
SHARED_WITHOUT_FILE = 0x21
"""Flags of mmap, MAP_SHARED and MAP_ANONYMOUS, which are refused together: such memory stays when
most of its mapping is gone, and is counted no more. (A mapping of /dev/zero is the same; see
`box`.)
"""
UNIX, INET, INET6, NETLINK = 1, 2, 10, 16
"""The families of sockets. Others are refused: a network namespace does not hold AF_VSOCK, and
commands need none.
"""
TCP, UDP = 6, 17
"""What an internet socket may name beside 0, its usual protocol. Netlink's 0 is its routes, which
resolvers ask for.
"""

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = (
    0x20,
    0x15,
    0x35,
    0x45,
    0x54,
    0x06,
)  # instructions of a BPF program
NUMBER_AT, MACHINE_AT, FIRST_ARGUMENT_AT, THIRD_ARGUMENT_AT, FOURTH_ARGUMENT_AT = 0, 4, 16, 32, 40
ALLOW, KILL = 0x7FFF0000, 0x80000000
REFUSE, MISSING, NO_FAMILY = 0x00050001, 0x00050026, 0x00050061
"""What the filter returns: errors EPERM, ENOSYS and EAFNOSUPPORT."""

Step = tuple[int, int, int, int]
"""An instruction, how many steps to leave out if it holds and if it does not, and its value."""


def allowed_calls(machine: str) -> dict[str, int]:
    """The numbers of the calls that are allowed with any argument."""
    words, column = ALLOWED.split(), 1 + list(MACHINES).index(machine)
    rows = zip(words[::3], words[column::3], strict=True)
    return {name: int(number) for name, number in rows if number != "-"}


def system_call_filter() -> bytes:
    """The program for this machine. Raises JobFailure on others than MACHINES."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise JobFailure(
            f"sandboxed commands run on {' and '.join(MACHINES)} machines, not on {machine}"
        )
    column = list(MACHINES).index(machine)
    steps: list[Step] = [
        (LOAD, 0, 0, MACHINE_AT),
        (EQUAL, 1, 0, MACHINES[machine]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
        *_if_equal([CLONE[column]], _clone()),
        *_if_equal([MMAP[column]], _mmap()),
        *_if_equal([numbers[column] for numbers in SOCKETS], _socket()),
    ]
    for first, last in _runs(sorted(allowed_calls(machine).values())):
        steps += [
            (AT_LEAST, 3, 0, last + 1),
            (AT_LEAST, 0, 1, first),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, MISSING),
        ]
    steps.append((RETURN, 0, 0, MISSING))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _clone() -> list[Step]:
    return [
        (LOAD, 0, 0, FIRST_ARGUMENT_AT),
        (ANY_BIT, 0, 1, NEW_USER_NAMESPACE),
        (RETURN, 0, 0, REFUSE),
        (RETURN, 0, 0, ALLOW),
    ]


def _mmap() -> list[Step]:
    return [
        (LOAD, 0, 0, FOURTH_ARGUMENT_AT),
        (AND, 0, 0, SHARED_WITHOUT_FILE),
        *_if_equal([SHARED_WITHOUT_FILE], [(RETURN, 0, 0, REFUSE)]),
        (RETURN, 0, 0, ALLOW),
    ]


def _socket() -> list[Step]:
    return [
        (LOAD, 0, 0, THIRD_ARGUMENT_AT),
        *_if_equal([0], [(LOAD, 0, 0, FIRST_ARGUMENT_AT), *_allow(UNIX, INET, INET6, NETLINK)]),
        *_if_equal([TCP, UDP], [(LOAD, 0, 0, FIRST_ARGUMENT_AT), *_allow(INET, INET6)]),
        (RETURN, 0, 0, NO_FAMILY),
    ]


def _allow(*families: int) -> list[Step]:
    return [*_if_equal(list(families), [(RETURN, 0, 0, ALLOW)]), (RETURN, 0, 0, NO_FAMILY)]


def _if_equal(values: list[int], then: list[Step]) -> list[Step]:
    """`then` if the loaded number is one of the values; it must end with a return."""
    to_then = range(len(values) - 1, -1, -1)
    tests = [
        (EQUAL, before, 0 if before else len(then), value)
        for before, value in zip(to_then, values, strict=True)
    ]
    return [*tests, *then]


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
