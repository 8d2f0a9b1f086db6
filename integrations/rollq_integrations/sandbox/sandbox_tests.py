"""Tests that every maker of sandboxes must pass, for ours and for those of packages.

    TestMine = sandbox_tests("mine", SandboxSpec(image="python:3.12-slim"), living)

pytest collects the class. A test is skipped where the maker refuses what it asks for. The tests
take minutes, and run commands that no machine but a sandbox should run: fork bombs, floods, loops.
They need a shell and its usual programs inside. They may leave an image `rollq-sandbox-tests:1`.
They do not test CPUs and networks.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

from rollq.env import CommandResult, Sandbox, SandboxSpec
from rollq.errors import EnvironmentFailure, JobFailure, RolloutFailure
from rollq_integrations.sandbox.makers import make_sandbox

Living = Callable[[], Collection[str]]
MEMORY = 256 << 20
"""Bytes of the sandboxes of the tests."""
SHOWN_OUTPUT = 32_768
"""Number of bytes of a command's output that are shown."""
LONGEST_WORD = 100
"""Number of bytes that a sandbox may say of a limit behind them."""
LARGEST_FILE = 16_000_000
"""Number of bytes that it need not give to a download."""
QUICK_S = 20.0
"""Seconds within which a command of one second must return, and a download that fails."""
GONE_S = 180.0
"""Seconds within which a sandbox must have gone after its end, or after its worker's."""
BOMB = "bomb() { while :; do bomb & done; }; bomb"
HOLDERS = 12
HOLD = (
    f"n=0; while [ $((n += 1)) -le {HOLDERS} ]; do "
    "(x=a; i=0; while [ $((i += 1)) -le 25 ]; do x=$x$x; done; echo held; sleep 20; :) & done; wait"
)
"""Starts processes that hold 32 MB each, and more than MEMORY together."""
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
PRINT_NETWORK = "readlink /proc/self/ns/net"
WORKER = """
import sys, time
from rollq.env import SandboxSpec
from rollq_integrations.sandbox import make_sandbox
boxes = [make_sandbox(sys.argv[1], SandboxSpec(image=sys.argv[2])) for _ in range(2)]
for box in boxes:
    box.run(["/bin/sh", "-c", "sleep 1000 &"])
print("ready", flush=True)
time.sleep(1000)
"""
"""A worker that will be killed. Its arguments are the maker's name and the image."""


class SandboxTests:
    """The tests of one maker."""

    maker: ClassVar[str]
    spec: ClassVar[SandboxSpec]

    @staticmethod
    def living() -> Collection[str]:
        """Ids of the sandboxes that exist."""
        raise NotImplementedError

    def test_commands_share_files_and_their_ends_are_told(self) -> None:
        with self._box() as box:
            _equal(_sh(box, "echo one > f; echo two; echo three >&2; exit 3"), ("two\nthree\n", 3))
            _equal(_sh(box, "cat f"), ("one\n", 0))
            _equal(box.run(["/bin/sh", "-c", 'echo "$0"', "a b\n'c'"]), ("a b\n'c'\n", 0))
            _equal(_sh(box, "printf '\\377'"), ("\ufffd", 0))
            _equal(_sh(box, "cat", seconds=5), ("", 0))  # its stdin is empty
            with self._box() as other:
                _expect(_sh(other, "cat f").code != 0, "another sandbox has the same files")

    def test_variables_are_those_of_the_command_alone(self) -> None:
        os.environ["ROLLQ_SANDBOX_TESTS_SECRET"] = "secret"
        try:
            with self._box() as box:
                _equal(_sh(box, "echo $A", env={"A": "x y"}), ("x y\n", 0))
                _equal(_sh(box, "echo $A"), ("\n", 0))
                _expect("secret" not in _sh(box, "env").output, "it has a variable of the worker's")
        finally:
            del os.environ["ROLLQ_SANDBOX_TESTS_SECRET"]

    def test_variables_of_the_spec_are_those_of_every_command(self) -> None:
        with self._box(env={"A": "x y", "B": "b"}) as box:
            _equal(_sh(box, "echo $A $B", env={"B": "c"}), ("x y c\n", 0))
            _equal(_sh(box, "echo $A $B"), ("x y b\n", 0))

    def test_commands_begin_in_the_folder_of_the_spec(self) -> None:
        with self._box(folder="/tmp") as box:
            _equal(_sh(box, "pwd"), ("/tmp\n", 0))

    def test_folders_of_the_spec_are_made_for_every_user(self) -> None:
        with self._box(folders=("/logs/agent", "/logs/artifacts")) as box:
            user = "nobody" if self.spec.image else ""
            _equal(_sh(box, "cd /logs; echo > agent/f; ls", user=user), ("agent\nartifacts\n", 0))

    def test_names_of_services_lead_to_loopback(self) -> None:
        with self._box(names=("peer",)) as box:
            line = _sh(box, "grep -w peer /etc/hosts").output
            _expect(line.startswith("127.0.0.1"), f"SandboxSpec.names: /etc/hosts has {line!r}")

    def test_an_image_is_built(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            recipe = f"FROM {self.spec.image}\nRUN echo built > /built\n"
            Path(folder, "Dockerfile").write_text(recipe)
            with self._box(image="rollq-sandbox-tests:1", dockerfile=Path(folder)) as box:
                _equal(_sh(box, "cat /built"), ("built\n", 0))

    def test_a_service_runs_beside_another_sandbox(self) -> None:
        command = ("/bin/sh", "-c", "echo served > /tmp/served")
        with self._box() as box, self._box(beside=box, command=command) as service:
            _equal(_sh(service, PRINT_NETWORK), (_sh(box, PRINT_NETWORK).output, 0))
            _until(
                lambda: _sh(service, "cat /tmp/served").output == "served\n",
                "SandboxSpec.command does not run",
            )

    def test_a_command_that_takes_too_long_is_stopped(self) -> None:
        with self._box() as box:
            began = time.monotonic()
            result = _sh(box, "echo a; trap '' TERM; sleep 100 & sleep 101", seconds=1)
            _expect(result.stopped != "", f"it was stopped, but {result} does not say so")
            _expect(result.output.startswith("a\n"), f"its output is lost: {result}")
            _expect(result.code in KILLED, f"its code is not one of {KILLED}: {result}")
            _in_time(began, "run(seconds=1)")
            _is_alive(box)

    def test_the_time_of_the_spec_is_that_of_a_command_that_names_none(self) -> None:
        with self._box(seconds=1.0) as box:
            result = _sh(box, "sleep 4")
            _expect(result.stopped != "", f"SandboxSpec.seconds=1 does not stop sleep 4: {result}")

    def test_what_is_left_running_does_not_hold_up_its_command(self) -> None:
        with self._box() as box:
            began = time.monotonic()
            _equal(_sh(box, "sleep 100 & echo begun"), ("begun\n", 0))
            _expect(time.monotonic() - began < 60, "it waited for a process in the background")

    def test_outputs_are_bounded(self) -> None:
        with self._box() as box:
            for flood in ("head -c 100000 /dev/zero", "yes"):
                shown = _sh(box, flood, seconds=5).output
                _expect(
                    SHOWN_OUTPUT <= len(shown) < SHOWN_OUTPUT + LONGEST_WORD,
                    f"{flood} shows {len(shown)} bytes",
                )
            _is_alive(box)

    def test_memory_and_processes_are_bounded(self) -> None:
        with self._box() as box:
            began = time.monotonic()
            result = _sh(box, "x=a; while :; do x=$x$x; done", seconds=60)
            _expect(result.code != 0, f"memory without end: {result}")
            _expect(
                time.monotonic() - began < 60,
                f"a command took memory for 60 s; SandboxSpec.memory is {MEMORY:,} bytes",
            )
            _sh(box, BOMB, seconds=3)
            box.end_processes()
            _until(
                lambda: _sh(box, "echo here").output == "here\n",
                "no room for a process after a fork bomb and end_processes(): are orphans reaped?",
            )

    def test_memory_is_that_of_all_processes_together(self) -> None:
        with self._box() as box:
            count = _sh(box, HOLD, seconds=60).output.count("held")
            _expect(
                count < HOLDERS,
                f"{count} processes held 32 MB each; SandboxSpec.memory is {MEMORY:,} for all",
            )
            _is_alive(box)

    def test_processes_are_ended_and_files_stay(self) -> None:
        with self._box() as box:
            _sh(box, "echo kept > f; echo too > /tmp/f; sleep 4321 & sleep 4321 &")
            box.end_processes()
            count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c ^4321$"
            _until(
                lambda: _sh(box, count).output == "0\n", "a process goes on after end_processes()"
            )
            _equal(_sh(box, "cat f /tmp/f"), ("kept\ntoo\n", 0))
            box.end_processes()  # of which there are none
            _is_alive(box)

    def test_a_policy_cannot_end_it(self) -> None:
        with self._box() as box:
            _sh(box, "kill -9 1; kill -TERM 1; kill -9 -1")
            _is_alive(box)
            _sh(box, "kill -STOP 1; kill -STOP -1", seconds=1)
            _is_alive(box)

    def test_files_go_in_and_come_out(self) -> None:
        content = bytes(range(256)) * 1000
        with self._box() as box, tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "in", "sub", "run.sh")
            script.parent.mkdir(parents=True)
            script.write_text("#!/bin/sh\necho ran")
            script.chmod(0o755)
            Path(folder, "in", "empty").mkdir()
            Path(folder, "in", "data").write_bytes(content)
            box.upload(Path(folder, "in"), "/tmp/new/folder")
            box.upload(Path(folder, "in", "data"), "/tmp/other/file")
            _equal(_sh(box, "/tmp/new/folder/sub/run.sh"), ("ran\n", 0))
            _equal(_sh(box, "cd /tmp/new/folder/empty && ls"), ("", 0))
            for path in ("/tmp/new/folder/data", "/tmp/other/file"):
                _expect(box.download(path) == content, f"{path} has changed")
            script.write_text("new")
            box.upload(Path(folder, "in"), "/tmp/new/folder")
            _expect(box.download("/tmp/new/folder/sub/run.sh") == b"new", "the old file is there")
            _sh(box, "rm /tmp/other/file; mkfifo /tmp/other/file")
            box.upload(Path(folder, "in", "data"), "/tmp/other/file")
            _expect(box.download("/tmp/other/file") == content, "the named pipe is there")

    def test_what_cannot_be_downloaded(self) -> None:
        with self._box() as box:
            _raises(FileNotFoundError, "download() of no file", box.download, "/tmp/none")
            size = LARGEST_FILE + 1_000_000
            _sh(box, f"head -c {size} /dev/zero > /tmp/big; mkdir /tmp/folder; mkfifo /tmp/pipe")
            for what, path in (
                (f"{size:,} bytes, of which {LARGEST_FILE:,} are allowed,", "/tmp/big"),
                ("a folder", "/tmp/folder"),
                ("a named pipe", "/tmp/pipe"),
            ):
                began = time.monotonic()
                _raises(EnvironmentFailure, f"download() of {what}", box.download, path)
                _in_time(began, f"download() of {what}")
            _is_alive(box)

    def test_commands_that_cannot_run_are_no_failure(self) -> None:
        with self._box() as box:
            for command in (["/none"], ["/bin/echo", "\0"], ["/bin/echo", "x" * 1_000_000]):
                _expect(box.run(command).code != 0, f"{command!s:.40} did run")
            box.run(["/bin/echo", "\ud800"])
            _is_alive(box)

    def test_a_command_has_its_user(self) -> None:
        """Needs an image: the sandbox's own system may have one user alone."""
        if self.spec.image:
            with self._box() as box:
                _equal(_sh(box, "id -un", user="nobody"), ("nobody\n", 0))

    def test_nothing_is_left_when_it_is_closed(self) -> None:
        before = set(self.living())
        with self._box() as box:
            _is_alive(box)
            _expect(bool({*self.living()} - before), "living() does not name a sandbox that lives")
        box.close()
        self._make().close()
        self._have_gone({*self.living()} - before)
        _raises(RolloutFailure, "run() after close()", _sh, box, "true")

    def test_nothing_is_left_when_its_worker_is_killed(self) -> None:
        before = set(self.living())
        arguments = [sys.executable, "-c", WORKER, self.maker, self.spec.image]
        worker = subprocess.Popen(arguments, stdout=subprocess.PIPE)
        assert worker.stdout is not None, "it has a pipe"
        line = worker.stdout.readline()
        left = {*self.living()} - before
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        _expect(line == b"ready\n" and len(left) >= 2, f"two sandboxes should live, not {left}")
        self._have_gone(left)

    def _make(self, **wishes: Any) -> Sandbox:
        try:
            return make_sandbox(self.maker, replace(self.spec, **wishes))
        except JobFailure as e:
            if not wishes:
                raise
            raise SkipTest(str(e)) from e

    @contextmanager
    def _box(self, **wishes: Any) -> Iterator[Sandbox]:
        with closing(self._make(**wishes)) as box:
            yield box

    def _have_gone(self, ids: Collection[str]) -> None:
        _until(lambda: not {*ids} & {*self.living()}, f"of {ids} some live on")


def sandbox_tests(maker: str, spec: SandboxSpec, living: Living) -> type[SandboxTests]:
    """The class of tests for the entry point of that name. Give it a name that begins with Test.
    `spec` names an image with a shell, if the maker needs one; the tests set its memory. `living`
    returns the ids of all of the maker's sandboxes, also those of other workers.
    """
    bounded = SandboxSpec(image=spec.image, memory=MEMORY)
    values = {"maker": maker, "spec": bounded, "living": staticmethod(living)}
    return type("SandboxTests", (SandboxTests,), values)


def _sh(box: Sandbox, command: str, **options: Any) -> CommandResult:
    return box.run(["/bin/sh", "-c", command], **options)


def _is_alive(box: Sandbox) -> None:
    _equal(_sh(box, "echo here"), ("here\n", 0))


def _equal(result: CommandResult, expected: tuple[str, int]) -> None:
    got = (result.output, result.code)
    _expect(got == expected and not result.stopped, f"{result}, where {expected} was expected")


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


def _raises(kind: type[Exception], what: str, call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except kind:
        return
    raise AssertionError(f"{what} raises no {kind.__name__}")


def _in_time(began: float, what: str) -> None:
    _expect(time.monotonic() - began < QUICK_S, f"{what} took more than {QUICK_S:g} s")


def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + GONE_S
    while not is_so():
        _expect(time.monotonic() < deadline, otherwise)
        time.sleep(0.5)
