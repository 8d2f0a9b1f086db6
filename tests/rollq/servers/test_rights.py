"""A user's rights are asked of the server, and nothing is done meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollq.servers.connection import connect
from rollq.servers.rights import refused
from tests.conftest import free_port, redis_binary, started_redis

USERS = """\
user default on nopass ~* &* +@all
user some on >secret resetchannels ~mine* &mine +@all -rename
user plain on >secret ~* &* +@all -multi
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("rights"), free_port()
    (folder / "users.acl").write_text(USERS)
    line = [redis_binary(), "--port", str(port), "--dir", str(folder), "--save", "", "--aclfile"]
    with started_redis([*line, str(folder / "users.acl")], port) as process:
        yield f"127.0.0.1:{port}/0"
        process.kill()


def test_what_a_user_may_not_send(address: str) -> None:
    with connect(f"redis://some:secret@{address}") as client:
        asked = [
            ("SET", "mine", 1),
            ("SET", "theirs", 1),
            ("RENAME", "mine", "mine2"),
            ("PUBLISH", "theirs", "x"),
        ]
        found = refused(client, [*asked, ("PUBLISH", "mine", "x"), ("DEL", "mine")])
        assert [line.split(":")[0] for line in found or ()] == [
            "SET theirs",
            "RENAME mine",
            "PUBLISH theirs",
        ]
        assert refused(client, [("ZADD", "mine", 1, "x")]) == []
        assert client.ping()  # the connection is not within a transaction


def test_nothing_is_done(address: str) -> None:
    with connect(f"redis://{address}") as client:
        client.set("kept", "x")
        before = client.dbsize()
        commands = [
            ("DEL", "kept"),
            ("SET", "new", 1),
            ("LPUSH", "kept", "x"),
            ("BLPOP", "away", 0),
            ("FLUSHALL",),
        ]
        assert refused(client, commands) == []
        assert (client.dbsize(), client.get("kept")) == (before, b"x")


def test_a_user_who_may_not_even_ask(address: str) -> None:
    with connect(f"redis://plain:secret@{address}") as client:
        (line,) = refused(client, [("SET", "x", 1)]) or ()
        assert line.startswith("MULTI: ") and "'multi' command" in line
        assert client.ping()


def test_a_server_that_takes_no_writes_refuses_no_right(address: str, tmp_path: Path) -> None:
    with connect(f"redis://{address}") as client:
        client.config_set("maxmemory", 1)
        try:
            assert refused(client, [("SET", "x", 1)]) == []
        finally:
            client.config_set("maxmemory", 0)
