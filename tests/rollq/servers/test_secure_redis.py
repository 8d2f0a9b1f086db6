"""A Redis behind TLS and a user of its own: the ledger, the broker and the commands reach it by its
address alone.
"""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from rollq import cli
from rollq.client.client import Client
from rollq.client.producing.broker import Broker, require_certificate
from rollq.commands.connect import ping_redis
from rollq.errors import RollqError
from rollq.ledger.constants import EVAL, NEW
from rollq.ledger.keys import QUEUE
from rollq.ledger.replies import JobMessage
from rollq.servers.connection import connect
from tests.e2e.stack import Stack
from tests.ledger_of import dead_letters_of, ledger_of
from tests.rollq.samples import group, play
from tests.servers import Server

pytestmark = pytest.mark.packages

PASSWORD = "p%40ss%2Fword"
"""As an address holds it: percent-encoded."""
AGAIN = JobMessage("r/g/0", QUEUE, NEW)
"""A job that is sent once more."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Redis that knows only user `rollq`, who may touch only rollq's and Celery's
    keys.
    """
    folder = tmp_path_factory.mktemp("acl")
    (folder / "users.acl").write_text(
        "user default off\nuser rollq on >p@ss/word ~rollq* ~_kombu.* &* +@all -@admin "
        "-@dangerous +info\n"
    )
    found = Server(folder, ["--aclfile", str(folder / "users.acl")])
    yield found.port
    found.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of `localhost`, and the authority that signed it."""
    import trustme

    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "key.pem")
    )
    return folder


@pytest.fixture(scope="module")
def tls_port(server: int, certificate: Path) -> Iterator[int]:
    """TLS in front of that Redis: few builds of redis-server speak it themselves."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener, context, server), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=tunnel, args=(plain, context, port), daemon=True).start()


def tunnel(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with (
        suppress(OSError),
        plain,
        context.wrap_socket(plain, server_side=True) as outside,
        socket.create_connection(("127.0.0.1", port)) as inside,
    ):
        back = threading.Thread(target=pump, args=(inside, outside), daemon=True)
        back.start()
        pump(outside, inside)
        inside.shutdown(socket.SHUT_RDWR)
        back.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)


def use(url: str) -> None:
    """All that a producer and a trainer do, the broker included."""
    with Client(url, run="r") as client:
        ledger_of(client).redis.delete(
            QUEUE, *(f"{QUEUE}\x06\x16{priority}" for priority in (EVAL, NEW))
        )
        client.submit(group())
        broker = Broker(url)
        assert broker.send([AGAIN]) == ["r/g/0"], broker.error
        assert broker.backlog() == {QUEUE: 3}
        broker.close()
        for sample in range(2):
            play(ledger_of(client), f"r/g/{sample}")
        client.seal()
        for batch in client.batches(1):
            batch.ack()
        assert client.stats()["delivered"] == 2
        dead_letters_of(client).forget_run()


def test_a_user_of_its_own(server: int, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"redis://rollq:{PASSWORD}@127.0.0.1:{server}/0"
    use(url)
    assert cli.main(["submit", "--run", "r", "--env", "shop", "--tasks", "0", "--redis", url]) == 0
    assert cli.main(["jobs", "drop", "r", "--whole-run", "--yes", "--redis", url]) == 0
    with connect(url) as connection, pytest.raises(redis.exceptions.NoPermissionError):
        connection.get("somebody-elses")


@pytest.mark.parametrize("user", ["rollq:wrong", "nobody:x", ""])
def test_a_wrong_user_is_told_at_once(server: int, user: str) -> None:
    with pytest.raises(RollqError, match=r"user or password|Authentication") as caught:
        ping_redis(
            f"redis://{user}@127.0.0.1:{server}/0" if user else f"redis://127.0.0.1:{server}/0"
        )
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("verified", ["by the authority", "not at all"])
def test_tls(tls_port: int, certificate: Path, verified: str) -> None:
    options = (
        f"ssl_ca_certs={certificate / 'ca.pem'}"
        if verified == "by the authority"
        else "ssl_cert_reqs=none"
    )
    use(f"rediss://rollq:{PASSWORD}@localhost:{tls_port}/0?{options}")


@pytest.mark.timeout(900)
def test_a_worker_plays_through_it(tls_port: int, certificate: Path, tmp_path: Path) -> None:
    address = (
        f"rediss://rollq:{PASSWORD}@localhost:{tls_port}/0?ssl_ca_certs={certificate / 'ca.pem'}"
    )
    stack = Stack(tmp_path, address)
    try:
        stack.engine()
        worker = stack.worker(2)
        for command in (
            "submit --run w --env shop --tasks 0-1 --size 2 --seal",
            "pull --run w --groups 2 --timeout 300",
        ):
            assert cli.main([*command.split(), "--redis", address]) == 0, stack.logs()
        said = worker.log.read_text()  # type: ignore[attr-defined]
        assert "p@ss" not in said and PASSWORD not in said
    finally:
        stack.close()


def test_an_unknown_authority_is_refused(tls_port: int) -> None:
    # kombu shares connections by host, whatever is verified
    url = f"rediss://rollq:{PASSWORD}@127.0.0.1:{tls_port}/0"
    with pytest.raises(RollqError, match=r"(?i)certificate"):
        ping_redis(url)
    broker = Broker(url)
    assert broker.send([AGAIN]) == []
    assert broker.error
    broker.close()


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("ssl_certfile=/none.crt&ssl_keyfile=/none.key", "Correct the files in its options"),
        ("ssl_cert_reqs=CERT_REQUIRED", "ssl_cert_reqs= takes required, optional and none"),
    ],
)
def test_a_wrong_option_is_not_taken_for_a_server_that_is_away(
    tls_port: int, option: str, remedy: str
) -> None:
    with pytest.raises(RollqError, match=remedy) as caught:
        ping_redis(f"rediss://rollq:{PASSWORD}@localhost:{tls_port}/0?{option}")
    assert "Start one" not in str(caught.value)


def test_only_tls_is_verified_and_only_when_nothing_is_said() -> None:
    for address in (
        "redis://h/0",
        "amqp://h",
        "rediss://h/0?ssl_cert_reqs=none",
        "sentinel://a;sentinel://b",
    ):
        assert require_certificate(address) == address
    assert require_certificate("rediss://h/0") == "rediss://h/0?ssl_cert_reqs=required"
    assert (
        require_certificate("rediss://h/0?ssl_ca_certs=x")
        == "rediss://h/0?ssl_ca_certs=x&ssl_cert_reqs=required"
    )
