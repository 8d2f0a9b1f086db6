"""Tests that every maker of sandboxes must pass, for ours and for those of packages.

    TestMine = sandbox_tests("mine", SandboxSpec(image="python:3.12-slim"), living)

pytest collects the class. `mine` is the entry point's name, and `living()` returns the ids of the
maker's sandboxes that exist. The tests take minutes, and run commands that no machine but a sandbox
should run: fork bombs, floods, loops. They need a shell inside, and nothing else. They do not test
CPUs, networks, or images that are built.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rollq.env import CommandResult, Sandbox, SandboxSpec
from rollq.errors import EnvironmentFailure, RolloutFailure
from rollq_integrations.sandbox.makers import make_sandbox

Living = Callable[[], Collection[str]]
MEMORY = 256 << 20
"""Bytes of the sandboxes of the tests."""
SHOWN = 32_768
"""Number of bytes of a command's output that are shown."""
LONGEST_WORD = 100
"""Number of bytes that a sandbox may say of a limit behind them."""
LARGEST_FILE = 16_000_000
"""Number of bytes that it need not give to a download."""
GONE_S = 180.0
"""Seconds within which a sandbox must have gone after its end, or after its worker's."""
BOMB = "bomb() { while :; do bomb & done; }; bomb"
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

    def test_a_command_that_takes_too_long_is_stopped(self) -> None:
        with self._box() as box:
            began = time.monotonic()
            result = _sh(box, "echo a; trap '' TERM; sleep 100 & sleep 101", seconds=1)
            _expect(result.stopped != "", f"it was stopped, but {result} does not say so")
            _expect(result.output.startswith("a\n"), f"its output is lost: {result}")
            _expect(time.monotonic() - began < 20, "its end took 20 s")
            _is_alive(box)

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
                    SHOWN <= len(shown) < SHOWN + LONGEST_WORD, f"{flood} shows {len(shown)} bytes"
                )
            _is_alive(box)

    def test_memory_and_processes_are_bounded(self) -> None:
        with self._box() as box:
            began = time.monotonic()
            result = _sh(box, "x=a; while :; do x=$x$x; done", seconds=60)
            _expect(result.code != 0, f"memory without end: {result}")
            _expect(time.monotonic() - began < 60, "its memory is not bounded")
            _sh(box, BOMB, seconds=3)
            box.end_processes()
            _until(lambda: _sh(box, "echo here").output == "here\n", "no room for a process")

    def test_processes_are_ended_and_files_stay(self) -> None:
        with self._box() as box:
            _sh(box, "echo kept > f; sleep 4321 & sleep 4321 &")
            box.end_processes()
            count = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c ^4321$"
            _until(lambda: _sh(box, count).output == "0\n", "a process goes on")
            _equal(_sh(box, "cat f"), ("kept\n", 0))

    def test_a_policy_cannot_end_it(self) -> None:
        with self._box() as box:
            _sh(box, "kill -9 1; kill -TERM 1; kill -9 -1")
            _is_alive(box)

    def test_files_go_in_and_come_out(self) -> None:
        content = bytes(range(256)) * 1000
        with self._box() as box, tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "in", "sub", "run.sh")
            script.parent.mkdir(parents=True)
            script.write_text("#!/bin/sh\necho ran")
            script.chmod(0o755)
            Path(folder, "in", "data").write_bytes(content)
            box.upload(Path(folder, "in"), "/tmp/new/folder")
            box.upload(Path(folder, "in", "data"), "/tmp/other/file")
            _equal(_sh(box, "/tmp/new/folder/sub/run.sh"), ("ran\n", 0))
            for path in ("/tmp/new/folder/data", "/tmp/other/file"):
                _expect(box.download(path) == content, f"{path} has changed")
            script.write_text("new")
            box.upload(Path(folder, "in"), "/tmp/new/folder")
            _expect(box.download("/tmp/new/folder/sub/run.sh") == b"new", "the old file is there")

    def test_what_cannot_be_downloaded(self) -> None:
        with self._box() as box:
            _raises(FileNotFoundError, box.download, "/tmp/none")
            _sh(box, f"head -c {LARGEST_FILE + 1_000_000} /dev/zero > /tmp/big; mkdir /tmp/folder")
            _raises(EnvironmentFailure, box.download, "/tmp/big")
            _raises(EnvironmentFailure, box.download, "/tmp/folder")
            _is_alive(box)

    def test_commands_that_cannot_run_are_no_failure(self) -> None:
        with self._box() as box:
            for command in (["/none"], ["/bin/echo", "\0"], ["/bin/echo", "x" * 1_000_000]):
                _expect(box.run(command).code != 0, f"{command!s:.40} did run")
            box.run(["/bin/echo", "\ud800"])
            _is_alive(box)

    def test_a_command_has_its_user(self) -> None:
        """Where there is an image: the sandbox's own system may have one user alone."""
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
        _raises(RolloutFailure, _sh, box, "true")

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

    def _make(self) -> Sandbox:
        return make_sandbox(self.maker, self.spec)

    @contextmanager
    def _box(self) -> Iterator[Sandbox]:
        with closing(self._make()) as box:
            yield box

    def _have_gone(self, ids: Collection[str]) -> None:
        _until(lambda: not {*ids} & {*self.living()}, f"of {ids} some live on")


def sandbox_tests(maker: str, spec: SandboxSpec, living: Living) -> type[SandboxTests]:
    """The class of tests for the maker of that name. Give it a name that begins with Test. `spec`
    names an image with a shell, if the maker needs one. The tests set its memory.
    """
    bounded = SandboxSpec(image=spec.image, memory=MEMORY)
    values = {"maker": maker, "spec": bounded, "living": staticmethod(living)}
    return type("SandboxTests", (SandboxTests,), values)


def _sh(box: Sandbox, command: str, **options: Any) -> CommandResult:
    return box.run(["/bin/sh", "-c", command], **options)


def _is_alive(box: Sandbox) -> None:
    _equal(_sh(box, "echo here"), ("here\n", 0))


def _equal(result: CommandResult, expected: tuple[str, int]) -> None:
    _expect((result.output, result.code) == expected, f"{result}, where {expected} was expected")


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise AssertionError(otherwise)


def _raises(kind: type[Exception], call: Callable[..., object], *args: object) -> None:
    try:
        call(*args)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def _until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + GONE_S
    while not is_so():
        _expect(time.monotonic() < deadline, otherwise)
        time.sleep(0.5)
