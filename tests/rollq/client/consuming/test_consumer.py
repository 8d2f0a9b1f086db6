"""Consumers as real processes that share a run: no group goes to two of them, and a dead consumer's
groups go to the next, once and oldest first.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from rollq.client.client import Client
from rollq.errors import ClientClosed, ContractError, LedgerError, NotHeld
from rollq.ledger.ledger import Ledger
from tests.rollq.groups import ack, end_holds, finish_groups
from tests.rollq.samples import group, is_over, reader
from tests.waiting import until

CONSUMER = """
import json, sys
from rollq.client.client import Client
from rollq.errors import NotHeld

url, hold_s, groups = sys.argv[1:]
with Client(url, run="r", hold_s=float(hold_s)) as client:
    for batch in client.batches(groups=int(groups)):
        print(json.dumps([group.id for group in batch.groups]), flush=True)
        sys.stdin.readline()  # the training step lasts until the test says so
        try:
            batch.ack()
            batch.ack()  # may be repeated
            print("acked", flush=True)
        except NotHeld as e:
            print(f"refused: {e}", flush=True)
"""
HOLD_S = 12.0
"""Longer than a slow machine stands still. Tests end holds of dead consumers and never wait for the
end.
"""


class ConsumerProcess:
    """One process. A training step ends on `ack`."""

    def __init__(self, url: str, groups: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, url, str(HOLD_S), str(groups)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def batch(self) -> list[str]:
        """The groups of the next batch; empty when the run is over."""
        line = self.process.stdout.readline()
        return list(json.loads(line)) if line else []

    def ack(self, said: str = "acked\n") -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().startswith(said)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


Start = Callable[..., ConsumerProcess]


@pytest.fixture
def start(redis_url: str) -> Iterator[Start]:
    """Starts a consumer, whose first batch are these groups."""
    started: list[ConsumerProcess] = []

    def begin(*names: str) -> ConsumerProcess:
        started.append(ConsumerProcess(redis_url, len(names)))
        assert started[-1].batch() == list(names)
        return started[-1]

    yield begin
    for consumer in started:
        with consumer.process as process:  # closes its pipes
            process.kill()


def test_groups_of_a_killed_consumer_are_handed_out_again_oldest_first(
    ledger: Ledger, start: Start
) -> None:
    finish_groups(ledger, *"abcdef", seal=True)
    victim = start("a", "b")
    other = start("c", "d")
    token = ledger.redis.hget(ledger.keys.group("a"), "token").decode()
    victim.kill()
    end_holds(ledger, "a", "b")
    other.ack()
    assert other.batch() == ["a", "b"]
    with pytest.raises(NotHeld, match="r/a"):
        ack(ledger, token, "a")  # as if it had only been slow
    other.ack()
    assert other.batch() == ["e", "f"]
    other.ack()
    assert other.batch() == []
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["redelivered"]) == (12, 2)
    assert is_over(ledger)


def test_a_slow_consumer_keeps_its_batch(redis_url: str, ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    held = f"{ledger.keys.prefix}held:train"
    with Client(redis_url, run="r", hold_s=3.0) as client, client.consumer() as consumer:
        batch = consumer.next(1)
        before = ledger.redis.zscore(held, "a")
        until(lambda: ledger.redis.zscore(held, "a") > before)
        batch.ack()


def test_a_stopped_consumer_learns_that_its_batch_went_to_another(
    ledger: Ledger, start: Start
) -> None:
    finish_groups(ledger, *"ab", seal=True)
    frozen = start("a", "b")
    os.kill(frozen.process.pid, signal.SIGSTOP)
    end_holds(ledger, "a", "b")
    other = start("a", "b")
    os.kill(frozen.process.pid, signal.SIGCONT)
    frozen.ack("refused: group r/")
    other.ack()
    assert frozen.batch() == other.batch() == []
    stats = reader(ledger).stats()
    assert (stats["delivered"], stats["redelivered"]) == (4, 2)


class TestClosing:
    def test_what_it_holds_goes_to_another_at_once(self, client: Client, ledger: Ledger) -> None:
        finish_groups(ledger, "g", "h", seal=True)
        first, second = client.consumer(), client.consumer()
        batch = first.next(2)
        first.close()
        first.close()
        for call in (
            lambda: first.next(1),
            batch.ack,
            lambda: first.ack(up_to=0),
            lambda: batch.skip("g", "x"),
        ):
            with pytest.raises(
                ClientClosed,
                match="run r: this consumer is closed, and its groups went to others",
            ):
                call()
        again = second.next(2, timeout=5)
        assert [group.redelivered for group in again.groups] == [True, True]
        again.ack()
        assert second.next(1) is None

    def test_the_batches_of_a_name_stay_with_it(self, client: Client, ledger: Ledger) -> None:
        finish_groups(ledger, "g", "h", seal=True)
        with client.consumer(name="t") as first:
            batch = first.next(1)
        with pytest.raises(ClientClosed, match="its name keeps its batches"):
            batch.ack()
        with client.consumer() as other:
            assert [group.id for group in other.next(1).groups] == ["h"]
        successor = client.consumer(name="t")
        assert [group.id for group in successor.next(1).groups] == ["g"]

    def test_a_closed_client_refuses_and_gives_everything_back(
        self, redis_url: str, ledger: Ledger
    ) -> None:
        finish_groups(ledger, "g", seal=True)
        client = Client(redis_url, run="r")
        consumer = client.consumer()
        consumer.next(1)
        client.close()
        client.close()
        assert reader(ledger).standing().ready == 1
        calls = (
            client.stats,
            client.seal,
            client.consumer,
            lambda: client.submit(group("h")),
            client.published,
        )
        for call in (*calls, lambda: client.cancel(run=True), lambda: next(client.batches(1))):
            with pytest.raises(ClientClosed, match="the client of run r is closed"):
                call()
        with pytest.raises(ClientClosed):
            consumer.next(1)


def test_misuse_that_did_nothing_is_named(client: Client, ledger: Ledger) -> None:
    finish_groups(ledger, "g", seal=True)
    consumer = client.consumer()
    with pytest.raises(
        ContractError, match="no batch of this consumer has had step 5 yet: the next is 0"
    ):
        consumer.ack(up_to=5)
    batch = consumer.next(1)
    batch.ack()
    with pytest.raises(NotHeld, match="batch 0 is acknowledged"):
        batch.skip("g", "late")
    consumer.ack(up_to=0)
    with pytest.raises(ContractError, match="cancel what"):
        client.cancel()
    client.cancel([])
    with pytest.raises(LedgerError, match="group r/c is unknown"):
        client.cancel(group="c")
    with pytest.raises(ContractError, match=r"\['r/g/0'\]"):
        client.requeue("r/g/0")
    with pytest.raises(ContractError, match="give the consumer a name, too"):
        client.consumer(step=3)


def test_what_a_forked_process_closes_is_its_parents(redis_url: str, ledger: Ledger) -> None:
    finish_groups(ledger, "a")
    code = """
import os, sys
from rollq import Client
with Client(sys.argv[1], run="r") as client:
    batch = client.consumer().next(1, 60)
    child = os.fork()
    if not child:
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.stats()["groups_held"] == 1
    batch.ack()
"""
    command = [sys.executable, "-W", "ignore", "-c", code, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_forked_process_gets_no_batch_of_its_parents(redis_url: str, ledger: Ledger) -> None:
    """Else both would train on the same groups, and both could acknowledge them."""
    finish_groups(ledger, "a")
    code = """
import os, sys
from rollq import Client
from rollq.errors import NotHeld
with Client(sys.argv[1], run="r") as client:
    consumer = client.consumer()
    child = os.fork()
    if not child:
        try:
            consumer.next(1, 60)
        except NotHeld as e:
            os._exit(7 if "make one in each process" in str(e) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [group.id for group in consumer.next(1, 60).groups] == ["a"]
"""
    command = [sys.executable, "-W", "ignore", "-c", code, redis_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
