"""A ledger behind Sentinels goes on when its primary dies or is replaced, and so do the
runs in it.
"""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from rollq import Client, Job
from rollq.client.producing.broker import Broker
from rollq.commands.connect import ping_redis
from rollq.errors import RollqError, Unwritable
from rollq.ledger.constants import NEW
from rollq.ledger.keys import QUEUE
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import JobMessage
from rollq.servers.connection import connect
from rollq.servers.health import check_redis
from rollq.servers.retry import RetryLoop
from tests.conftest import free_port, redis_binary, started_redis
from tests.e2e.stack import Stack, check_all_delivered
from tests.rollq.samples import group
from tests.servers import HOST, SAFE, SERVICE, Replicated, Sentinels, Server
from tests.waiting import until

PATIENTLY = RetryLoop()
"""Sentinels on a busy machine may take longer than a call waits."""


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    servers = Sentinels(tmp_path / "servers")
    yield servers
    servers.close()


def test_a_server_that_is_no_primary_any_more_is_left(tmp_path: Path) -> None:
    """Also when only a script says so, and when nobody closes its connections."""
    server = Server(tmp_path)
    try:
        with connect(server.url, patience_s=0) as client:
            ledger = Ledger(client, "r")
            ledger.submit(group())
            connection = client.client_id()
            server.client.replicaof(HOST, free_port())
            with pytest.raises(Unwritable, match=r"READONLY|read only"):
                ledger.submit(group("next"))
            assert client.client_id() != connection
    finally:
        server.kill()


def test_a_primary_that_was_replaced_and_lives_on_is_left(tmp_path: Path) -> None:
    """Nothing tells it: it goes on taking writes, which would be lost."""
    servers = Sentinels(tmp_path, settings=(), primary=("--rename-command", "SLAVEOF", ""))
    try:
        with connect(servers.url) as client, redis.Redis(port=servers.ports[0]) as sentinel:
            assert client.info("server")["tcp_port"] == servers.primary.port
            until(lambda: failover(sentinel))
            until(lambda: servers.primary_port() != servers.primary.port)
            until(lambda: client.info("server")["tcp_port"] != servers.primary.port)
            assert servers.primary.client.info("replication")["role"] == "master"
    finally:
        servers.close()


def test_a_call_in_flight_goes_on_at_the_next_primary(sentinels: Sentinels) -> None:
    """redis-py would connect again within the call, to the address that it has, until it
    gives up.
    """
    with connect(sentinels.url) as client, ThreadPoolExecutor() as threads:
        client.ping()
        waiting = threads.submit(client.blpop, ["list"], timeout=4)
        until(lambda: sentinels.primary.client.info("clients")["blocked_clients"] == 1)
        sentinels.primary.kill()
        assert waiting.result(120) is None


def failover(sentinel: redis.Redis) -> bool:
    with suppress(redis.ResponseError):  # the replicas are not ready for it yet
        return bool(sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE))
    return False


def test_a_primary_without_its_replicas_is_warned_about(tmp_path: Path) -> None:
    for settings, warnings in (((), 1), (SAFE, 0)):
        pair = Replicated(
            tmp_path / str(warnings), settings=[*settings, "--maxmemory-policy", "noeviction"]
        )
        try:
            with connect(pair.primary.url) as client:
                assert len(check_redis(client)) == warnings
        finally:
            pair.close()


def test_servers_and_sentinels_have_passwords_of_their_own(tmp_path: Path) -> None:
    server = Server(tmp_path / "primary")
    port, config = free_port(), tmp_path / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind {HOST}\ndir {tmp_path}\nrequirepass of-sentinels\nlogfile "
        f"{tmp_path / 'log'}\n"
        f"sentinel monitor {SERVICE} {HOST} {server.port} 1\nsentinel auth-pass "
        f"{SERVICE} of@servers\n"
    )
    server.client.config_set("requirepass", "of@servers")
    sentinel = started_redis([redis_binary(), str(config), "--sentinel"], port)
    address = (
        f"{HOST}:{free_port()},{HOST}:{port}/0?service={SERVICE}"  # the first Sentinel is away
    )
    try:
        with connect(
            f"sentinel://:of%40servers@{address}&sentinel_password=of-sentinels"
        ) as client:
            assert Ledger(client, "r").submit(group()).new
        with pytest.raises(RollqError, match="refuses this user or password"):
            ping_redis(f"sentinel://{address}&sentinel_password=of-sentinels")
        for wrong in ("", "&sentinel_password=wrong"):
            with pytest.raises(
                RollqError,
                match=r"refuses .*: a Sentinel refuses sentinel_username or sentinel_pass",
            ):
                ping_redis(f"sentinel://:of%40servers@{address}{wrong}")
    finally:
        sentinel.kill()
        sentinel.wait(60)
        server.kill()


def test_a_service_that_sentinels_do_not_know_is_named(sentinels: Sentinels) -> None:
    with pytest.raises(
        RollqError, match=r"no Redis at .*No master found for 'other'\. Start the Sentinels"
    ):
        ping_redis(sentinels.url.replace(SERVICE, "other"))


def test_a_sentinel_that_is_away_or_silent_holds_up_no_message(sentinels: Sentinels) -> None:
    with socket.create_server((HOST, 0)) as silent:
        lost = f"{HOST}:{free_port()},{HOST}:{silent.getsockname()[1]}"
        broker = Broker(sentinels.url.replace("//", f"//{lost},"))
        began = time.monotonic()
        assert broker.send([JobMessage("r/g/0", QUEUE, NEW)]) == ["r/g/0"], broker.error
        assert time.monotonic() - began < 5.0
        broker.close()


@pytest.mark.timeout(900)
def test_a_run_goes_on_when_the_primary_is_killed(sentinels: Sentinels, tmp_path: Path) -> None:
    """Ledger and broker: workers, a producer and a trainer, all in the middle of their work."""
    stack = Stack(tmp_path, sentinels.url)
    jobs = 48
    try:
        stack.engine("--latency", "0.2")
        workers = [stack.worker(6), stack.worker(6)]
        producer = threading.Thread(target=submit, args=(sentinels.url, jobs))
        producer.start()
        stack.wait(lambda: stack.stats("r")["done"] >= 6, 150, "some jobs")
        sentinels.primary.kill()
        killed = time.monotonic()
        done = stack.stats("r")["done"]
        print(f"answered again after {time.monotonic() - killed:.1f} s")
        stack.wait(lambda: stack.stats("r")["done"] > done, 150, "the run to go on")
        print(f"goes on after {time.monotonic() - killed:.1f} s")
        producer.join(150)
        check_all_delivered(stack, "r", jobs)
        assert [worker.poll() for worker in workers] == [None, None], stack.logs()
    finally:
        stack.close()


def submit(url: str, jobs: int) -> None:
    """Submits while the primary is replaced."""
    with Client(url, run="r") as client:
        for task in range(jobs // 2):
            some = [Job(env="shop", task=task, size=2)]
            PATIENTLY(lambda some=some: client.submit(some, ahead=1000), 150)
            time.sleep(0.1)


def test_no_sentinel_is_a_lost_connection() -> None:
    address = f"sentinel://{HOST}:{free_port()}/0?service={SERVICE}"
    with connect(address, patience_s=0.1) as client, pytest.raises(redis.ConnectionError) as caught:
        client.ping()
    assert len(str(caught.value)) < 120  # without redis-py's clients
