"""A tunnel through a program `ssh` that leads to sockets of this machine."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollq_integrations.sandbox.containers.engine import sweep
from rollq_integrations.sandbox.containers.hosts import host_at, hosts
from rollq_integrations.sandbox.containers.tunnel import Tunnel
from tests.waiting import until

SSH = (
    f"#!{sys.executable}"
    + """
import os, socket, sys, threading, time

target, command = sys.argv[-2:]
forward = sys.argv[sys.argv.index('-L') + 1]
inner, outer = forward.split(":")
open({pids!r}, "a").write(f"{os.getpid()}\\n")
if target.lower() != "me@there" or command != "cat" or "-p" not in sys.argv:
    time.sleep(1.0)
    sys.exit(f"cannot reach {target}")
server = socket.socket(socket.AF_UNIX)
server.bind(inner)
time.sleep(0.1)
server.listen()


def serve():
    while True:
        here, there = server.accept()[0], socket.socket(socket.AF_UNIX)
        if there.connect_ex(outer) == 0:
            here.sendall(there.recv(100))
        here.close()


threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""
)


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the numbers of the programs `ssh` that began."""
    pids = tmp_path / "pids"
    (tmp_path / "ssh").write_text(SSH.replace("{pids!r}", repr(str(pids))))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return pids


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "engine"))
        server.listen()
        yield str(tmp_path / "engine")


def reaches(tunnel: Tunnel) -> bool:
    tunnel.open()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(tunnel.address.removeprefix("unix://"))
        return True


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_it_opens_again_where_it_has_ended(pids: Path, engine: str) -> None:
    tunnel = Tunnel(f"ssh://me@There:22{engine}")
    assert reaches(tunnel) and reaches(tunnel)
    [first] = map(int, pids.read_text().split())
    os.kill(first, signal.SIGKILL)
    until(lambda: tunnel._process is not None and tunnel._process.poll() is not None, 10)
    assert reaches(tunnel) and len(pids.read_text().split()) == 2
    tunnel.close()
    assert not any(runs(int(pid)) for pid in pids.read_text().split())


def test_a_sweep_opens_it(pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No container may have been placed at that host yet."""
    monkeypatch.setenv("ROLLQ_SANDBOX_HOSTS", f"ssh://me@there:22{tmp_path}/none")
    sweep()
    assert pids.read_text()
    hosts()[0].close()
    host_at.cache_clear()


def test_it_ends_with_its_worker(pids: Path, engine: str) -> None:
    code = (
        "import os, signal\nfrom rollq_integrations.sandbox.containers.tunnel import Tunnel\n"
        f"tunnel = Tunnel('ssh://me@there:22{engine}')\ntunnel.open()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    [ssh] = map(int, pids.read_text().split())
    until(lambda: not runs(ssh), 10)


def test_it_says_why_it_does_not_open(pids: Path) -> None:
    with pytest.raises(ConnectionError, match="cannot reach elsewhere"):
        Tunnel("ssh://elsewhere").open()


def test_those_who_wait_for_one_attempt_share_its_failure(pids: Path) -> None:
    """Else the last of 64 episodes would wait 64 times as long for a host that is away."""
    tunnel = Tunnel("ssh://elsewhere")
    with ThreadPoolExecutor(8) as threads:
        attempts = [threads.submit(tunnel.open) for _ in range(8)]
        assert all("cannot reach elsewhere" in str(each.exception()) for each in attempts)
    assert len(pids.read_text().split()) == 1
