"""What is said of a refusal of Redis: why, and a remedy that fits."""

import socket
import ssl
from collections.abc import Iterator

import pytest
import redis

from rollq import cli
from rollq.errors import LedgerError, Unwritable
from rollq.servers import connection, retry
from rollq.servers.refusal import guarded, no_answer, unreached

FULL = redis.ResponseError("MISCONF Errors writing to the AOF file: No space left on device")
DELETE = "Delete that key: it fills again"


def said(error: redis.ResponseError) -> LedgerError:
    def refused() -> None:
        raise error

    with pytest.raises(LedgerError) as raised:
        guarded("rollq:runs", refused, DELETE)
    return raised.value


def wrapped(cause: Exception) -> redis.ConnectionError:
    """As redis-py raises it."""
    error = redis.ConnectionError(str(cause))
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("address", "error", "remedy"),
    [
        (
            "redis://h:1/0",
            wrapped(ConnectionRefusedError("refused")),
            "Start one with `rollq redis`",
        ),
        (
            "redis://h:1/0",
            wrapped(socket.gaierror(-2, "Name or service not known")),
            "No such host",
        ),
        (
            "redis://h:1/0",
            redis.ConnectionError("Connection closed by server."),
            "Does it speak TLS there (rediss://, or ssl=true)?",
        ),
        (
            "redis://h:1/0",
            wrapped(ConnectionResetError(104, "Connection reset by peer")),
            "(rediss://, or ssl=true)?",
        ),
        (
            "redis://h:1/0",
            redis.TimeoutError("Timeout connecting to server"),
            "Start one with `rollq redis`",
        ),
        (
            "rediss://h:1/0",
            wrapped(ssl.SSLError("CERTIFICATE_VERIFY_FAILED")),
            "trusted (ssl_ca_certs=)?",
        ),
        (
            "rediss://h:1/0",
            wrapped(ssl.SSLError("alert certificate required")),
            "(ssl_certfile=, ssl_keyfile=)?",
        ),
        (
            "rediss://h:1/0",
            redis.TimeoutError("Timeout connecting to server"),
            "Does it speak TLS there",
        ),
        (
            "rediss://h:1/0?ssl_keyfile=/none",
            wrapped(FileNotFoundError(2, "No such file")),
            "Correct the files in its",
        ),
        (
            "unix:///none.sock",
            wrapped(FileNotFoundError(2, "No such file")),
            "Start one with `rollq redis`",
        ),
        (
            "h:1, h:2",
            wrapped(wrapped(FileNotFoundError(2, "No such file"))),
            "Correct the files in its options",
        ),
        (
            "rediss://h:1/0",
            redis.RedisError("Invalid SSL Certificate Requirements Flag: X"),
            "ssl_cert_reqs= takes",
        ),
        (
            "h:1, h:2",
            redis.AuthenticationError("invalid username-password pair"),
            "Correct the user and the password",
        ),
    ],
)
def test_a_server_that_is_not_reached_has_the_remedy_of_its_cause(
    address: str, error: Exception, remedy: str
) -> None:
    assert remedy in unreached(address, error)


@pytest.mark.parametrize(
    ("error", "unwritable", "remedy"),
    [
        (FULL, True, "Make room on its disk"),
        (
            redis.ResponseError(
                "Error running script: @user_script:9: -MISCONF Redis is configured"
            ),
            True,
            "Make room",
        ),
        (
            redis.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            True,
            "Raise its maxmemory",
        ),
        (
            redis.ReadOnlyError("You can't write against a read only replica."),
            True,
            "the address of its primary",
        ),
        (
            redis.ResponseError("@user_script:9: -READONLY You can't write"),
            True,
            "the address of its primary",
        ),
        (
            redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
            True,
            "Start its replicas",
        ),
        (
            redis.exceptions.NoPermissionError("this user has no permissions to run 'zrange'"),
            False,
            "Allow its user the keys",
        ),
        (redis.ResponseError("ERR max number of clients reached"), False, "max number of clients"),
    ],
)
def test_what_is_whole_is_never_to_be_deleted(
    error: redis.ResponseError, unwritable: bool, remedy: str
) -> None:
    text = str(found := said(error))
    assert isinstance(found, Unwritable) is unwritable
    assert text.startswith("rollq:runs: ") and remedy in text
    assert "delete" not in text.lower()


def test_a_busy_redis_is_not_to_be_stopped_without_saving() -> None:
    busy = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
    error = said(redis.ResponseError(busy))
    assert (
        isinstance(error, Unwritable)
        and "SHUTDOWN" not in str(error)
        and "Wait until" in str(error)
    )


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key",
        "u:7: DAMAGED rollq:{OOM}:run is a list where -MISCONF belongs",
    ],
)
def test_a_damaged_key_may_be(text: str) -> None:
    error = said(redis.ResponseError(text))
    assert str(error).endswith(f"{DELETE}.") and not isinstance(error, Unwritable)


@pytest.fixture
def frozen() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"


@pytest.mark.parametrize("first_s", [retry.FIRST_S, 0.2])
@pytest.mark.parametrize("command", ["stats", "top", "doctor"])
def test_a_frozen_redis_is_there_so_that_nobody_starts_a_second_one(
    command: str,
    first_s: float,
    frozen: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 0.2)
    monkeypatch.setattr(retry, "FIRST_S", first_s)
    more = ["--env", "shop"] if command == "doctor" else []
    assert cli.main([command, "--redis", frozen, *more]) == 1
    said = "".join(capsys.readouterr())
    assert "It is there and does not answer: look whether it is frozen" in said
    assert "Do not start a second one" in said and "rollq redis" not in said


def test_one_that_still_reads_its_file_is_waited_for() -> None:
    assert "wait until it has" in no_answer(
        redis.BusyLoadingError("Redis is loading the dataset in memory")
    )
    assert no_answer(redis.ConnectionError("Connection refused")) == ""
