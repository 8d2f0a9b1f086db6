"""Commands of a hostile policy in a real sandbox, and tools that run them."""

import errno
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyseccomp
import pytest

from rollq.env import CommandResult
from rollq.errors import EnvironmentFailure, JobFailure
from rollq_integrations.sandbox import PYTHON, Bubblewrap, Limits
from rollq_integrations.sandbox.arguments import LONGEST_ARGUMENT
from rollq_integrations.sandbox.bubblewrap import box as boxes
from rollq_integrations.sandbox.bubblewrap.box import check_system
from rollq_integrations.sandbox.bubblewrap.system_calls import (
    CLONE_NEWUSER,
    system_call_filter,
)
from tests import bubblewrap
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
LIMITS = Limits(seconds=5, memory=256 << 20, disk=16 << 20, processes=32)
MARK = "41.5926535"
"""The argument of a `sleep` that a test looks for."""
COUNT = "set -- /proc/[0-9]*; echo $#"
"""Counts processes without starting one: of `ls | grep` the second may start before or after the
first has looked.
"""


@pytest.fixture(scope="module", autouse=True)
def bwrap() -> None:
    bubblewrap.require()


@pytest.fixture
def box() -> Iterator[Bubblewrap]:
    with Bubblewrap(LIMITS) as box:
        yield box


def bash(box: Bubblewrap, command: str) -> CommandResult:
    return box.run(["/bin/bash", "-c", command])


def python(box: Bubblewrap, code: str) -> CommandResult:
    return box.run([PYTHON, "-c", code])


def start(box: Bubblewrap, *command: str) -> None:
    """Begin a command without waiting for it."""
    box._process.stdin.write(
        json.dumps({"argv": command, "seconds": 60, "env": {}}).encode() + b"\n"
    )


def sleeping(mark: str = MARK) -> bool:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    ).stdout
    return any(line.endswith(f"sleep {mark}") for line in listed.splitlines())


def test_commands_share_a_folder_that_begins_empty(box: Bubblewrap) -> None:
    assert bash(box, "pwd; ls -A; echo one > f; echo two >&2; exit 3") == CommandResult(
        "/work\ntwo\n", 3
    )
    assert python(box, "print(open('f').read(), end='')") == CommandResult("one\n", 0)
    with Bubblewrap(LIMITS) as other:
        assert bash(other, "ls -A /work /tmp /dev/shm").output.split() == [
            "/dev/shm:",
            "/tmp:",
            "/work:",
        ]


def test_it_is_the_same_world_in_every_sandbox() -> None:
    seen = set()
    for _ in range(2):
        with Bubblewrap(LIMITS) as box:
            seen.add(bash(box, "hostname; env | sort; date +%Z; ls -A / /etc").output)
            seen.add(python(box, "print(set('abcdefg'), hash('a'))").output)
    assert len(seen) == 2


def test_a_fork_bomb_is_bounded_and_ends(box: Bubblewrap) -> None:
    bomb = (
        "import os\nn = 0\nwhile n < 1000:\n if os.fork() == 0:\n  import time; "
        "time.sleep(60)\n n += 1\n"
    )
    started = python(
        box, f"try:\n {bomb.replace(chr(10), chr(10) + ' ')}\nexcept BlockingIOError: print(n)"
    )
    assert 10 < int(started.output) < LIMITS.processes
    assert bash(box, ":(){ :|:& };:; wait; sleep 60").stopped == "it ran longer than 5 s"
    assert bash(box, COUNT).output == "2\n"  # the sandbox's own shell and this one


def test_a_fork_bomb_leaves_the_neighbour_its_processes(box: Bubblewrap) -> None:
    with Bubblewrap(LIMITS) as other:
        start(other, "/bin/bash", "-c", f"for i in {{1..100}}; do sleep {MARK} & done; wait")
        until(sleeping, 30)
        assert python(box, "import os; print(os.fork() >= 0)").code == 0


@pytest.mark.parametrize(
    "bomb",
    [
        "x = bytearray(1 << 30)",
        "import os; os.memfd_create('x')",
        "import ctypes; assert ctypes.CDLL(None).shmget(0, 1 << 30, 0o1666) >= 0",
        "import ctypes; assert ctypes.CDLL(None).semget(0, 32000, 0o1600) >= 0",
        "import ctypes; assert ctypes.CDLL(None).msgget(0, 0o1600) >= 0",
        "import ctypes; assert ctypes.CDLL(None).mq_open(b'/q', 0o102, 0o600, None) >= 0",
        "import ctypes; assert ctypes.CDLL(None).inotify_init() >= 0",
        "import mmap; mmap.mmap(-1, 4096)",
        "import mmap; zero = open('/dev/zero', 'r+b'); mmap.mmap(zero.fileno(), 4096)",
        "open('/work/x', 'wb').write(bytes(32 << 20))",
        "open('/dev/shm/x', 'wb').write(bytes(32 << 20))",
    ],
)
def test_memory_that_is_refused(box: Bubblewrap, bomb: str) -> None:
    assert python(box, bomb).code == 1
    assert python(box, "print(2)") == CommandResult("2\n", 0)


def test_processes_share_one_limit_of_memory(box: Bubblewrap) -> None:
    bomb = (
        "import os\nif os.fork(): os.fork() or os.fork()\nx = bytearray(b'x' * (100 << "
        "20))\nwhile True: pass"
    )
    assert python(box, bomb).stopped == "it used more than 256 MB of memory"
    assert python(box, "print(2)") == CommandResult("2\n", 0)


def test_tables_of_pages_count_as_memory(box: Bubblewrap) -> None:
    """A page here and there takes a table for each, far more than the page."""
    spread = (
        "import ctypes, time; libc = ctypes.CDLL(None)\n"
        "libc.mmap.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int, ctypes.c_int, ctypes.c_long)\n"
        "for n in range(1, 60_000): libc.mmap(n << 30, 4096, 1, 0x100022, -1, 0); "
        "ctypes.string_at(n << 30, 1)\n"
        "time.sleep(60)"
    )
    assert python(box, spread).stopped == "it used more than 256 MB of memory"


def test_too_many_files_of_several_commands(box: Bubblewrap) -> None:
    many = "import os\nfor n in range({}): os.close(os.open(f'/tmp/{{n}}', os.O_CREAT))"
    assert python(box, many.format(10)) == CommandResult("", 0)
    for n in range(2):
        stopped = python(
            box, f"folder = {n}\n" + many.format(30_000).replace("/tmp/", "/tmp/{folder}-")
        ).stopped
    assert "more than 50,000 files" in stopped
    assert bash(box, "ls /tmp | wc -l") == CommandResult("0\n", 0)


def test_endless_output(box: Bubblewrap) -> None:
    result = bash(box, "yes")
    assert result.stopped == "it wrote more than 1 MB" and len(result.output) == 32768
    assert bash(box, "head -c 100000 /dev/zero").output == "\0" * 32768
    assert bash(box, r"printf '\xff'; echo -n '{}'").output == "\ufffd{}"


def test_time(box: Bubblewrap) -> None:
    with Bubblewrap(Limits(seconds=0.2)) as quick:
        assert bash(quick, "echo before; trap '' TERM INT; while :; do :; done") == CommandResult(
            "before\n", -9, "it ran longer than 0.2 s"
        )


def test_there_is_no_network(box: Bubblewrap, redis_server: str) -> None:
    port = int(redis_server.split(":")[2].split("/")[0])
    result = python(box, f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")
    assert "Connection refused" in result.output
    assert bash(box, "tail -n +3 /proc/net/dev").output.strip().startswith("lo:")
    assert bash(box, "tail -n +3 /proc/net/dev | wc -l").output.strip() == "1"
    assert (
        "unreachable"
        in python(box, "import socket; socket.create_connection(('192.0.2.1', 80), 2)").output
    )
    for family in ("AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_TIPC"):
        assert (
            "Address family not supported"
            in python(box, f"import socket; socket.socket(socket.{family})").output
        )
    assert python(box, "import socket; socket.socketpair(); print(socket.if_nameindex())").code == 0


def test_programs_load_the_systems_libraries_and_python_its_own() -> None:
    # An interpreter's folder may have a libtinfo or a libssl for itself (conda), of which bash
    # would warn in each line.
    with Bubblewrap(LIMITS) as box:
        listed = bash(box, "ls ${LD_LIBRARY_PATH:-/nowhere} 2>/dev/null").output.split()
        assert all(name.startswith("libpython") for name in listed)
        assert python(box, "import ssl, sys; print(sys.version)").output.strip() == sys.version


def test_it_sees_nothing_of_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLQ_REDIS_URL", "redis://:secret@h/0")
    (tmp_path / "key").write_text("secret")
    with Bubblewrap(LIMITS) as box:
        assert "secret" not in bash(box, "env; cat /proc/*/environ 2>/dev/null").output
        for path in (
            tmp_path / "key",
            Path(__file__),
            Path.home(),
            Path("/etc/shadow"),
            Path("/proc/1/root/etc"),
        ):
            assert bash(box, f"cat {path} || ls {path}").code != 0, path
        assert bash(box, "ls /proc/1/fd; kill -9 1; kill -STOP 1; echo here").output.endswith(
            "here\n"
        )
        assert bash(box, COUNT).output == "2\n"
        assert bash(box, "touch /usr/x /etc/x /dev/x /x").code == 1
        assert bash(box, "id -u").output != "0\n"
        assert "CapEff:\t0000000000000000" in bash(box, "cat /proc/self/status").output


def test_it_makes_no_namespaces_of_its_own(box: Bubblewrap) -> None:
    assert bash(box, "unshare -Ur true").code == 1
    clone = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, "clone")
    code = (
        f"import ctypes; assert ctypes.CDLL(None).syscall({clone}, {CLONE_NEWUSER} | 17, "
        "0, 0, 0, 0) == -1"
    )
    assert python(box, code) == CommandResult("", 0)
    threads = (
        "import threading; t = threading.Thread(target=print, args=('here',)); t.start(); t.join()"
    )
    assert python(box, threads) == CommandResult("here\n", 0)


def test_the_kernel_ends_it_before_the_worker(box: Bubblewrap) -> None:
    score = "cat /proc/self/oom_score_adj"
    assert bash(
        box, f"{score}; echo 0 2> /dev/null > /proc/self/oom_score_adj; {score}"
    ) == CommandResult("1000\n1000\n", 0)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (
            "git",
            "git init -q r && cd r && git -c user.name=x -c user.email=x commit -q "
            "--allow-empty -m x && git gc -q",
        ),
        ("gcc", "echo 'int main(){return 0;}' > a.c && gcc a.c -o a && ./a"),
        ("node", 'node -e \'new (require("worker_threads").Worker)("", {eval: true})\''),
        (PYTHON, f"{PYTHON} -c 'import multiprocessing as m; q = m.Queue(); q.put(1); q.get()'"),
    ],
)
def test_real_programs_run(program: str, command: str) -> None:
    if not shutil.which(program) and program != PYTHON:
        pytest.skip(f"needs {program}")
    with Bubblewrap(Limits(seconds=60, memory=2 << 30)) as box:
        assert bash(box, command).code == 0


@pytest.mark.parametrize(
    "name", ["io_uring_setup", "keyctl", "memfd_create", "unshare", "perf_event_open"]
)
def test_a_forbidden_system_call_is_missing(box: Bubblewrap, name: str) -> None:
    number = pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
    code = (
        "import ctypes; call = ctypes.CDLL(None, use_errno=True).syscall; "
        f"print(call({number}, 0, 0, 0, 0, 0), ctypes.get_errno())"
    )
    assert python(box, code) == CommandResult(f"-1 {errno.ENOSYS}\n", 0)


def test_without_libseccomp_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(JobFailure, match="apt-get install libseccomp2"):
        system_call_filter()


def test_a_link_out_of_the_folder_leads_nowhere(box: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("kept")
    assert bash(box, f"ln -s {tmp_path} out; rm -rf out/*; ls out/; cat out/f").code == 1
    box.close()
    assert (tmp_path / "f").read_text() == "kept"


def test_background_processes_end_with_their_command(box: Bubblewrap) -> None:
    left = f"setsid nohup sleep {MARK} & disown; (sleep {MARK} &) ; sleep 0.1; echo gone"
    assert bash(box, left) == CommandResult("gone\n", 0)
    until(lambda: not sleeping(), 10)


def test_everything_ends_with_the_sandbox(box: Bubblewrap) -> None:
    start(box, "/bin/sleep", MARK)
    until(sleeping, 30)
    box.close()
    until(lambda: not sleeping(), 10)
    with pytest.raises(EnvironmentFailure, match="the sandbox has ended"):
        bash(box, "true")


def test_everything_ends_with_a_worker_that_is_killed() -> None:
    code = (
        "from rollq_integrations.sandbox import "
        "Bubblewrap\nBubblewrap().run(['/bin/sleep', '41.25'])"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    until(lambda: sleeping("41.25"), 30)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until(lambda: not sleeping("41.25"), 10)


def test_a_sandbox_that_is_killed_from_outside_is_the_environments_failure(box: Bubblewrap) -> None:
    os.killpg(box._process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match="the sandbox has ended"):
        bash(box, "true")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["/bin/bash", "-c", "x" * 100_001], "an argument has"),
        (["/bin/bash", "-c", "echo \0"], "an argument has"),
        (["/bin/bash", "-c", "#" * (LONGEST_ARGUMENT - 7) + "\necho 1"], "1\n"),
        (["/bin/none"], "/bin/none: No such file"),
        ([], ": posix_spawn: argv first element cannot be empty"),
        (["/bin/echo", "\ud800"], "?\n"),
    ],
)
def test_commands_that_cannot_run(box: Bubblewrap, command: list[str], says: str) -> None:
    assert box.run(command).output.startswith(says)
    assert bash(box, "echo here").output == "here\n"


@pytest.mark.parametrize("env", [{"A": "x\0"}, {"A=B": "x"}, {"A": "\ud800"}])
def test_variables_that_no_process_can_have(box: Bubblewrap, env: dict[str, str]) -> None:
    result = box.run(["/bin/true"], env=env)
    assert result.code == 126 and result.output.startswith("/bin/true: ")
    assert bash(box, "echo here").output == "here\n"


def test_refused_downloads_leave_nothing_open(box: Bubblewrap) -> None:
    for _ in range(150):  # it may open 128 files
        with pytest.raises(EnvironmentFailure, match="is not a regular file"):
            box.download("/work")
    assert bash(box, "echo here").output == "here\n"


@pytest.mark.parametrize("path", ["/a\0b", "/\ud800"])
def test_a_name_that_no_file_can_have(box: Bubblewrap, path: str) -> None:
    with pytest.raises(EnvironmentFailure, match=r"the sandbox: .*(null|encode)"):
        box.download(path)
    assert bash(box, "echo here").output == "here\n"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), EnvironmentFailure("the sandbox did not answer for 25 s")]
)
def test_an_answer_that_comes_late_is_not_that_of_the_next_command(
    box: Bubblewrap, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def late(process: Any, seconds: float) -> None:
        select.select([process.stdout], [], [], seconds)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(boxes, "_answer", late)
        with pytest.raises(type(error)) as raised:
            bash(box, "echo first")
    assert raised.value is error
    with pytest.raises(EnvironmentFailure, match="the sandbox has ended"):
        bash(box, "echo second")


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    check_system.cache_clear()
    with pytest.raises(JobFailure, match=r"need bwrap on PATH, .*apt-get install bubblewrap"):
        Bubblewrap()
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace'\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(
        JobFailure, match=r"cannot confine commands on this system: .*No permissions"
    ):
        Bubblewrap()
    monkeypatch.setattr(boxes.sys, "platform", "darwin")
    with pytest.raises(JobFailure, match="need Linux"):
        Bubblewrap()
    check_system.cache_clear()


def test_variables_and_files_of_a_command(box: Bubblewrap, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.sh").write_text("#!/bin/sh\necho $X; cat /work/data")
    (tmp_path / "sub" / "run.sh").chmod(0o755)
    (tmp_path / "data").write_bytes(bytes(range(256)) * 1000)
    box.upload(tmp_path, "/work")
    assert bash(box, "cat data | wc -c; ls sub") == CommandResult("256000\nrun.sh\n", 0)
    assert box.run(["/work/sub/run.sh"], env={"X": "here"}).output.startswith("here\n")
    assert box.download("/work/data") == bytes(range(256)) * 1000
    assert box.run(["/bin/sleep", "9"], seconds=0.1).stopped == "it ran longer than 0.1 s"
    with pytest.raises(FileNotFoundError):
        box.download("/work/none")
    bash(box, "truncate -s 20M /tmp/big; mkfifo /tmp/pipe")
    for path, says in (
        ("/tmp/big", "more than"),
        ("/tmp", "is not a regular file"),
        ("/tmp/pipe", "is not a regular file"),
    ):
        with pytest.raises(EnvironmentFailure, match=says):
            box.download(path)
    with pytest.raises(EnvironmentFailure, match=r"Read-only|Permission"):
        box.upload(tmp_path / "data", "/usr/data")
    box.upload(tmp_path / "data", "here")
    assert box.download("/work/here") == bytes(range(256)) * 1000
    with pytest.raises(FileNotFoundError):
        box.upload(tmp_path / "none", "/work")


def test_a_worker_with_many_files_open(box: Bubblewrap) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit, 4096), most))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Bubblewrap(LIMITS) as other:
            assert other.run(["/bin/echo", "x"]).output == "x\n"
    finally:
        for file in held:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


def test_an_interpreter_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.base_prefix)
    code = f"import sys; sys.base_prefix = {str(tmp_path / 'python')!r}; "
    code += "from rollq_integrations.sandbox import Bubblewrap, PYTHON; box = Bubblewrap(); "
    code += "print(box.run([PYTHON, '-c', 'print(6 * 7)']).output)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "42"
