"""A producer that is killed before or after each single command to Redis, and then
started again.
"""

import json
import threading
from collections import Counter
from typing import Any

import pytest
import redis

from rollq import cli
from rollq.ledger.constants import SENDING_S
from rollq.ledger.ledger import Ledger
from tests.rollq.samples import play, reader

LINE = ["submit", "--run", "r", "--env", "shop", "--tasks", "0-2", "--size", "2", "--seal"]
JOBS = {f"r/shop.train.{task}/{sample}" for task in range(3) for sample in range(2)}
MOST = 200
"""More commands than this line needs."""


class Killed(BaseException):
    """No code catches it, and no further command is sent: to Redis it looks like the end of a
    process.
    """


class Death:
    """Comes at the command of this number; commands of the ledger and of the broker are counted
    alike.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, sent: bool) -> None:
        self.commands = 0
        producer = threading.get_ident()
        send = redis.connection.AbstractConnection.send_packed_command

        def deadly(connection: Any, command: Any, check_health: bool = True) -> None:
            if threading.get_ident() != producer:  # a thread of another test
                send(connection, command, check_health)
                return
            self.commands += 1
            if self.commands > at or (self.commands == at and not sent):
                raise Killed
            send(connection, command, check_health)
            if self.commands == at:
                raise Killed

        monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", deadly)


def submit(redis_url: str, *more: str) -> int:
    return cli.main([*LINE, "--redis", redis_url, "--json", *more])


def dies(redis_url: str, patch: pytest.MonkeyPatch, at: int, *, sent: bool) -> bool:
    """Whether the producer died. False: it was done before."""
    death = Death(patch, at, sent=sent)
    try:
        assert submit(redis_url) == 0
    except Killed:
        return True
    finally:
        patch.undo()
    assert death.commands < at
    return False


def messages(ledger: Ledger) -> Counter[str]:
    """How often each job was published."""
    # One for each priority.
    keys = [key for key in ledger.redis.scan_iter("rollq*", _type="list") if b"{" not in key]
    found = [json.loads(message) for key in keys for message in ledger.redis.lrange(key, 0, -1)]
    return Counter(message["headers"]["argsrepr"] for message in found)


def check_whole(ledger: Ledger) -> None:
    """Every group is there once, in order, and each job is at the broker, or in the outbox to be
    published soon.
    """
    stats = reader(ledger).stats()
    assert (stats["submitted"], stats["queued"], stats["groups_open"], stats["sealed"]) == (
        6,
        6,
        3,
        True,
    )
    assert [
        int(ledger.redis.hget(ledger.keys.group(f"shop.train.{task}"), "seq")) for task in range(3)
    ] == [1, 2, 3]
    published, soon = messages(ledger), ledger.scripts.now() + SENDING_S
    assert set(published.values()) <= {1}
    outbox = {
        member.decode(): at
        for member, at in ledger.redis.zrange(ledger.keys.queued, 0, -1, withscores=True)
    }
    assert set(outbox) == JOBS
    assert {job for job, at in outbox.items() if at > soon} <= set(published)


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_killed_at_any_command(
    redis_url: str,
    ledger: Ledger,
    patch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sent: bool,
) -> None:
    entered = set()
    for at in range(1, MOST):
        ledger.redis.flushall()
        died = dies(redis_url, patch, at, sent=sent)
        entered.add(reader(ledger).stats()["submitted"])
        assert submit(redis_url) == 0
        check_whole(ledger)
        if not died:
            break
    assert at > 15
    assert entered == {0, 2, 4, 6}
    play(ledger, "r/shop.train.2/1")
