"""A script over a held connection gives what redis-py gives, also after the connection broke or was cut off."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollq.servers import connection, held_connections
from rollq.servers.connection import connect

ECHO = "return { ARGV, #ARGV, false, { ok = 'fine' } }"
FAIL = "return redis.error_reply(ARGV[1])"
COUNT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with connect(redis_url, retries=2) as client:
        yield client


def clients(url: str) -> set[int]:
    """Ids of the connections of all clients but this function's."""
    with redis.Redis.from_url(url) as other:
        mine = other.client_id()
        return {int(row["id"]) for row in other.client_list()} - {mine}


def call(client: Any, sha: str, *args: Any) -> Any:
    try:
        return client.execute_command("EVALSHA", sha, 0, *args)
    except redis.ResponseError as e:
        return type(e), str(e)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=4000) | st.text(max_size=50) | st.integers() | st.floats(), max_size=8))
def test_replies_are_those_of_redis_py(client: Any, redis_url: str, args: list[Any]) -> None:
    with redis.Redis.from_url(redis_url) as plain:
        echo = plain.script_load(ECHO)
        for _ in range(2):
            assert call(client, echo, *args) == call(plain, echo, *args)


@pytest.mark.parametrize(
    "text", ["ERR not today", "WRONGTYPE of key", "OOM command not allowed", "READONLY replica", ""]
)
def test_errors_are_those_of_redis_py(client: Any, redis_url: str, text: str) -> None:
    with redis.Redis.from_url(redis_url) as plain:
        sha = plain.script_load(FAIL)
        echo = plain.script_load(ECHO)
        for _ in range(3):
            call(client, echo)
            assert call(client, sha, text) == call(plain, sha, text)


def test_calls_one_after_another_use_one_connection(client: Any, redis_url: str) -> None:
    echo = client.script_load(ECHO)
    call(client, echo)
    before = clients(redis_url)
    for _ in range(20):
        call(client, echo)
    assert clients(redis_url) == before


def test_a_connection_that_broke_is_replaced(client: Any, redis_url: str) -> None:
    count = client.script_load(COUNT)
    assert client.execute_command("EVALSHA", count, 1, "n") == 1
    with redis.Redis.from_url(redis_url) as other:
        other.client_kill_filter(_type="normal", skipme=True)
    assert client.execute_command("EVALSHA", count, 1, "n") == 2
    assert client.execute_command("EVALSHA", count, 1, "n") == 3


def test_a_call_that_was_cut_off_leaves_no_reply_behind(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = client.script_load(COUNT)
    client.execute_command("EVALSHA", count, 1, "n")
    held = client.held.take()

    class Cut:
        fileno = held._sock.fileno

        def recv(self, size: int) -> bytes:
            raise KeyboardInterrupt

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(held_connections, "_plain_socket", lambda connection: Cut())
        client.held.call(held, ["EVALSHA", count, 1, "n"])
    assert [client.execute_command("EVALSHA", count, 1, "m") for _ in range(3)] == [1, 2, 3]


def test_one_that_was_idle_goes_back_to_the_pool(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = client.script_load(ECHO)
    call(client, echo)
    monkeypatch.setattr(held_connections, "FRESH_S", -1.0)
    assert client.held.take() is None
    assert call(client, echo, "a")[0] == [b"a"]


def test_a_server_that_is_silent_is_asked_again(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 0.1)
    with connect(redis_url, retries=100) as client, redis.Redis.from_url(redis_url) as other:
        sha = client.script_load("return 7")
        call(client, sha)
        other.execute_command("CLIENT", "PAUSE", 500)
        assert call(client, sha) == 7
        assert call(client, sha) == 7


def test_the_kernel_counts_the_time_of_a_held_one(client: Any) -> None:
    call(client, client.script_load(ECHO))
    held = client.held.take()
    assert held._sock.gettimeout() is None
    seconds = struct.unpack("ll", held._sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
    assert seconds == (int(connection.SOCKET_TIMEOUT_S), 0)
    client.held._leave(held)
    assert held._sock.gettimeout() == connection.SOCKET_TIMEOUT_S


@pytest.mark.parametrize("missing", ["hiredis", "socket"])
def test_without_what_it_needs_redis_py_sends(client: Any, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "hiredis":
        monkeypatch.setattr(held_connections, "hiredis", None)
    else:
        monkeypatch.setattr(held_connections, "_plain_socket", lambda connection: None)
    echo = client.script_load(ECHO)
    assert [call(client, echo, 1.5)[0] for _ in range(3)] == [[b"1.5"]] * 3


def test_a_fork_does_not_share_them(client: Any) -> None:
    count = client.script_load(COUNT)
    client.execute_command("EVALSHA", count, 1, "n")
    child = os.fork()
    if child == 0:
        taken = client.held.take()
        os._exit(0 if taken is None and client.execute_command("EVALSHA", count, 1, "of child") == 1 else 1)
    replies = [client.execute_command("EVALSHA", count, 1, "n") for _ in range(20)]
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert replies == list(range(2, 22))


@pytest.mark.parametrize("size", [1, held_connections.READ, 1 << 20])
def test_a_reply_of_any_length(client: Any, size: int) -> None:
    echo = client.script_load(ECHO)
    assert [len(call(client, echo, "x" * size)[0][0]) for _ in range(3)] == [size] * 3


@pytest.mark.parametrize(
    "script", ["return 7", "return false", "return { double = 3.5 }", "return { map = { a = 1 } }"]
)
def test_a_reply_of_any_kind(client: Any, redis_url: str, script: str) -> None:
    sha = client.script_load(script)
    began = time.monotonic()
    with redis.Redis.from_url(redis_url) as plain:
        assert [call(client, sha) for _ in range(3)] == [call(plain, sha)] * 3
    assert time.monotonic() - began < connection.SOCKET_TIMEOUT_S  # none was waited for in vain


def test_what_the_server_says_unasked_is_redis_pys_to_handle(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = client.script_load(ECHO)
    call(client, echo)
    held = client.held.take()
    heard: list[Any] = []
    monkeypatch.setattr(held._parser, "handle_push_response", heard.append)
    held._parser._reader.feed(b">2\r\n$10\r\ninvalidate\r\n$1\r\na\r\n")
    assert client.held.call(held, ["EVALSHA", echo, 0, "b"])[0] == [b"b"]
    assert heard == [[b"invalidate", b"a"]]
