"""Containers of a real engine as sandboxes. Run `make test-containers`."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rollq.env import CommandResult
from rollq.env.attempt import AttemptLabels, labelled
from rollq.errors import (
    EnvironmentFailure,
    ForOtherWorkers,
    RolloutFailure,
    ServiceAway,
    WorkerFailure,
)
from rollq_integrations.sandbox import Container
from rollq_integrations.sandbox.containers import container as container_module
from rollq_integrations.sandbox.containers import hosts as hosts_module
from rollq_integrations.sandbox.containers import lease
from rollq_integrations.sandbox.containers.archives import folders_for_all
from tests import container_engine
from tests.container_engine import IMAGE, containers
from tests.waiting import until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600), container_engine.UNCLOSED]


@pytest.fixture(scope="module", autouse=True)
def served() -> Iterator[None]:
    with container_engine.served():
        yield


@pytest.fixture
def box() -> Iterator[Container]:
    with Container(IMAGE, memory=256 << 20, processes=64) as box:
        yield box


def sh(box: Container, command: str, **options) -> CommandResult:
    return box.run(["sh", "-c", command], **options)


def test_commands_share_its_files(box: Container) -> None:
    assert sh(box, "pwd; echo one > /tmp/f; echo two >&2; exit 3") == CommandResult("/\ntwo\n", 3)
    assert sh(box, "cat /tmp/f") == CommandResult("one\n", 0)
    assert sh(box, "id -un; echo $X", env={"X": "y"}, user="nobody") == CommandResult(
        "nobody\ny\n", 0
    )
    assert box.run(["/usr/bin/env", "python3", "-c", "print(2)"]) == CommandResult("2\n", 0)


def test_what_is_left_running_goes_on_and_does_not_hold_up_its_command(box: Container) -> None:
    began = time.monotonic()
    assert sh(box, "sleep 0.2; (sleep 1; echo late > /tmp/f) & echo begun").output == "begun\n"
    assert time.monotonic() - began < 30
    until(lambda: sh(box, "cat /tmp/f").output == "late\n", 60)


def test_time(box: Container) -> None:
    result = sh(box, "echo a; trap '' TERM; sleep 60 & sleep 61", seconds=1)
    assert result.output.startswith("a\n") and result.stopped == "it ran longer than 1 s"
    assert "sleep\x0061" not in sh(box, "cat /proc/[0-9]*/cmdline").output


@pytest.mark.parametrize(
    ("bomb", "says"),
    [
        ("yes", "y\n" * 16_000),
        ("x=a; while :; do x=$x$x; done", ""),
        (":(){ :|:& };: ; wait", ""),
        (
            "mkdir /run/rollq/x; head -c 99999999 /dev/zero > /run/rollq/x/y; echo",
            "[the 16 MB for outputs are full]",
        ),
    ],
)
def test_what_takes_too_much_is_bounded(box: Container, bomb: str, says: str) -> None:
    assert sh(box, bomb, seconds=10).output.startswith(says)
    until(lambda: sh(box, "rm -rf /run/rollq/x; echo here").output == "here\n", 60)


def test_output_is_bounded_whatever_the_policy_has_replaced(box: Container) -> None:
    sh(box, "printf '#!/bin/sh\\nexec cat /dev/zero' > /tmp/head; chmod +x /tmp/head")
    result = sh(box, "mv /tmp/head /usr/bin/head")
    assert result.stopped == "it wrote more than 65536 bytes" and len(result.output) == 65536
    assert sh(box, "rm /usr/bin/head; echo") == CommandResult("/run/rollq: 1: head: not found\n", 0)


def test_all_processes_are_ended_where_there_is_no_room_for_another(box: Container) -> None:
    sh(box, "bomb() { while :; do bomb & done; }; echo kept > /tmp/f; bomb", seconds=2)
    box.end_processes()
    until(lambda: sh(box, "cat /tmp/f").output == "kept\n", 10)
    orphans = "for i in 1 2 3; do (sleep 0.1 &) ; done; sleep 1; grep -l ' Z ' /proc/[0-9]*/stat"
    assert sh(box, orphans).output == ""


def test_privileges(box: Container) -> None:
    status = sh(box, "cat /proc/self/status").output
    assert "NoNewPrivs:\t1\n" in status and "CapEff:\t00000000000404fb\n" in status


def test_an_images_user_has_no_privileges(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nUSER nobody\n")
    with Container("rollq-nobody:1", dockerfile=tmp_path) as box:
        for user in ("", "nobody", "games"):
            assert (
                "CapEff:\t0000000000000000\n" in sh(box, "cat /proc/self/status", user=user).output
            )


def test_no_other_user_writes_to_a_commands_output(box: Container) -> None:
    assert sh(box, "ls -l /run/rollq").output.split()[2] == "-rw-------"
    assert sh(box, "umask").output == "0022\n"


def test_options_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLQ_SANDBOX_OPTIONS", '{"cap_drop": ["ALL"], "security_opt": []}')
    with Container(IMAGE) as box:
        status = sh(box, "cat /proc/self/status").output
        assert "NoNewPrivs:\t0\n" in status and "CapEff:\t0000000000000000\n" in status
    for wrong in ("{", "[]"):
        monkeypatch.setenv("ROLLQ_SANDBOX_OPTIONS", wrong)
        with pytest.raises(ForOtherWorkers, match=r"ROLLQ_SANDBOX_OPTIONS is not .*JSON"):
            Container(IMAGE)
    monkeypatch.setenv("ROLLQ_SANDBOX_OPTIONS", '{"memory": 1}')
    with pytest.raises(ForOtherWorkers, match="has an unknown option"), Container(IMAGE) as box:
        sh(box, "true")


def test_there_is_no_network(box: Container) -> None:
    assert sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1").output.split() == ["lo"]
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert "unreachable" in box.run(["python3", "-c", code]).output


def test_files_in_and_out(box: Container, tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "run.sh").write_text("#!/bin/sh\necho ran")
    (tmp_path / "in" / "sub" / "run.sh").chmod(0o755)
    box.upload(tmp_path / "in", "/new/tests")
    assert sh(box, "/new/tests/sub/run.sh; stat -c %U /new/tests/sub").output == "ran\nroot\n"
    box.upload(tmp_path / "in" / "sub" / "run.sh", "/new/one")
    assert box.download("/new/one") == b"#!/bin/sh\necho ran"
    sh(box, "truncate -s 20M /tmp/big")
    for path, says in (
        ("/tmp/big", "more than 16000000 bytes"),
        ("/etc/apt", "is not a regular file"),
    ):
        with pytest.raises(EnvironmentFailure, match=says):
            box.download(path)
    sh(box, "ln -s /tmp/self /tmp/self")
    for path, error in (
        ("/none", FileNotFoundError),
        ("/tmp/self", (FileNotFoundError, EnvironmentFailure)),
    ):
        with pytest.raises(error):
            box.download(path)


def test_one_that_is_closed_before_it_has_started_is_not_left() -> None:
    with labelled(AttemptLabels("early")):
        for _ in range(8):
            Container(IMAGE).close()
    until(
        lambda: (
            not [
                thread
                for thread in threading.enumerate()
                if thread.name.startswith("rollq-container_")
            ]
        ),
        60,
    )
    assert containers(run="early") == []


def test_commands_that_cannot_run(box: Container) -> None:
    assert box.run(["/none"]).code == 127
    assert box.run(["echo", "\0"]).output.startswith("an argument has")
    assert box.run(["echo", "x" * 100_001]).output.startswith("an argument has")
    assert box.run(["echo", "\ud800"]).output == "\ufffd\n"


def test_labels_and_its_end() -> None:
    with labelled(AttemptLabels("run-1", "run-1/g/0", 3)), Container(IMAGE) as box:
        sh(box, "true")
        assert len(containers(run="run-1", job="run-1/g/0", attempt="3")) == 1
    until(lambda: not containers(run="run-1"), 30)
    with pytest.raises(EnvironmentFailure, match="the container was closed"):
        sh(box, "true")


@pytest.mark.parametrize("trick", ["true", "sleep 600 > /proc/1/fd/0 2>&1 &"])
def test_it_ends_with_a_worker_that_is_killed(trick: str) -> None:
    code = (
        "import time\nfrom rollq.env.attempt import *\nfrom rollq_integrations.sandbox "
        "import Container\n"
        "with labelled(AttemptLabels('killed')):\n"
        f" boxes = [Container('{IMAGE}') for _ in range(4)]\n"
        f"[box.run(['sh', '-c', '{trick}']) for box in boxes]\nprint('ready', flush=True)\n"
        "time.sleep(600)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout and worker.stdout.readline() == b"ready\n"
    assert len(containers(run="killed")) == 4
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    until(lambda: not containers(run="killed"), 60)


def test_it_ends_when_its_worker_says_nothing_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "LEASE_S", 3)
    monkeypatch.setattr(container_module, "HEARTBEAT", lease.Heartbeat())
    monkeypatch.setattr(lease, "BEAT_S", 0.5)
    with labelled(AttemptLabels("silent")), Container(IMAGE) as box:
        time.sleep(5)
        assert sh(box, "echo here").output == "here\n"
        monkeypatch.setattr(lease, "BEAT_S", 600)
        until(lambda: not containers(run="silent"), 60)
        with pytest.raises(WorkerFailure, match=r"the container at .* has gone"):
            sh(box, "true")
        with pytest.raises(WorkerFailure, match=r"the container at .* has gone"):
            box.download("/etc/passwd")


def test_the_time_of_a_command_begins_once_the_container_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command that was killed for its memory was not too slow, however slow the start was."""

    def start_slowly(folders: Sequence[str]) -> bytes:
        time.sleep(3)
        return folders_for_all(folders)

    monkeypatch.setattr(container_module, "folders_for_all", start_slowly)
    with Container(IMAGE) as box:
        result = sh(box, "kill -9 $$", seconds=1)
        assert (result.code, result.stopped) == (container_module.KILLED, "")


def test_time_passes_without_its_program(box: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "GRACE_S", 6)
    sh(
        box,
        "printf '#!/bin/sh\\nexec sleep 999\\n' > /bin/x; chmod +x /bin/x; mv /bin/x /bin/timeout",
    )
    assert sh(box, "echo", seconds=1).stopped == "it ran longer than 1 s"
    assert box.download("/bin/timeout") == b"#!/bin/sh\nexec sleep 999\n"


def test_the_time_of_a_command_that_never_began_ends_no_other(
    box: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "GRACE_S", 2)
    with pytest.raises(EnvironmentFailure):
        box.run(["true"], seconds=1, user="nosuch")
    assert sh(box, "sleep 4; echo here").output == "here\n"


@pytest.mark.skipif(not shutil.which("podman"), reason="it stops a service of its own, Podman's")
def test_an_engine_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "GRACE_S", 2)
    monkeypatch.setattr(hosts_module, "TIMEOUT_S", 5.0)
    monkeypatch.setattr(hosts_module, "PING_S", 5.0)
    service = container_engine.podman(tmp_path / "engine.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine.sock")
    try:
        with Container(IMAGE) as box:
            sh(box, "true")
            service.send_signal(signal.SIGSTOP)
            with pytest.raises(WorkerFailure, match="the container engine"):
                sh(box, "true", seconds=1)
            with pytest.raises(ServiceAway, match="does not answer"):
                Container(IMAGE)
            service.send_signal(signal.SIGCONT)
    finally:
        service.kill()
        service.wait(60)


def test_folders_for_every_user() -> None:
    with Container(IMAGE, folders=("/logs/agent", "/logs/artifacts")) as box:
        assert sh(box, "echo x > /logs/agent/f && ls -A /logs", user="nobody") == CommandResult(
            "agent\nartifacts\n", 0
        )


def test_a_policy_cannot_end_it(box: Container) -> None:
    sh(box, "kill -9 1; kill -TERM 1; kill -9 -1")
    assert sh(box, "echo here").output == "here\n"


def test_an_entrypoint_that_does_not_run_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f'FROM {IMAGE}\nENTRYPOINT ["sleep", "1"]\n')
    says = r"ENTRYPOINT \['sleep', '1'\] must run its arguments"
    with (
        pytest.raises(RolloutFailure, match=says),
        Container("rollq-entrypoint:1", dockerfile=tmp_path) as box,
    ):
        sh(box, "true")
    (tmp_path / "Dockerfile").write_text(f'FROM {IMAGE}\nENTRYPOINT ["env", "A=b"]\n')
    with Container("rollq-entrypoint:2", dockerfile=tmp_path) as box:
        assert sh(box, "tr '\\0' '\\n' < /proc/1/environ | grep ^A=").output == "A=b\n"


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentFailure, match=r"the image 127\.0\.0\.1:9/none:1"):
        Container("127.0.0.1:9/none:1")
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN echo reason; exit 7\n")
    with pytest.raises(EnvironmentFailure, match=r"(?s)the image rollq-none:2 .*reason"):
        Container("rollq-none:2", dockerfile=tmp_path)
    (tmp_path / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN while sleep 1; do echo on; done\n")
    with pytest.raises(EnvironmentFailure, match=r"(?s)rollq-none:3 .*took longer than 3 s.*on"):
        Container("rollq-none:3", dockerfile=tmp_path, build_s=3)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(ServiceAway, match=r"the container engine at unix:.*none.sock does not"):
        Container(IMAGE)
