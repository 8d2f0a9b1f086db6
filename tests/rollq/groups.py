"""Groups that are finished, and holds that end, without a worker and without waiting."""

from collections.abc import Mapping, Sequence
from typing import Any

from rollq.batch import Batch
from rollq.job import Purpose
from rollq.ledger.constants import HOLD_S
from rollq.ledger.dead_letters import DeadLetters
from rollq.ledger.deliveries import Deliveries
from rollq.ledger.ledger import Ledger
from rollq.ledger.replies import TakenGroup
from tests.rollq.samples import group, play, reader
from tests.waiting import until


def play_groups(
    ledger: Ledger, *names: str, size: int = 2, reward: float = 1.0, version: str = "1"
) -> None:
    """Plays every job of these groups of run r."""
    for name in names:
        for sample in range(size):
            play(ledger, f"r/{name}/{sample}", reward, version)


def finish_groups(
    ledger: Ledger, *names: str, seal: bool = False, reward: float = 1.0, **changes: object
) -> None:
    """Submits groups of two and plays them."""
    for name in names:
        ledger.submit(group(name, **changes))
        play_groups(ledger, name, reward=reward)
    if seal:
        ledger.seal()


def play_when_submitted(
    ledger: Ledger, rewards: Mapping[str, Sequence[float]], version: str = "1"
) -> None:
    """Plays a try for each reward of a group, once the group is there."""
    for name, of_group in rewards.items():
        until(lambda name=name: reader(ledger).group_states([name]) != [""])  # type: ignore[misc]
        for sample, reward in enumerate(of_group):
            play(ledger, f"{ledger.run}/{name}/{sample}", reward, version)


def names(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [group.id for group in batch.groups]


def end_holds(ledger: Ledger, *names: str, purpose: Purpose = Purpose.TRAIN) -> None:
    """What time does to holds that are renewed no more."""
    for name in names:
        ledger.redis.zadd(f"{ledger.keys.prefix}held:{purpose}", {name: 1}, xx=True)


def drop_group(ledger: Ledger, name: str) -> None:
    """One member of two dies: with min_viable = size the group is dropped."""
    DeadLetters(ledger.redis, "r").cancel(f"r/{name}/0")
    play(ledger, f"r/{name}/1")


def deliveries(ledger: Ledger) -> Deliveries:
    """Of the same run."""
    return Deliveries(ledger.redis, ledger.run)


def take(
    ledger: Ledger,
    groups: int,
    token: str,
    hold_s: float = HOLD_S,
    purpose: Purpose = Purpose.TRAIN,
    **how: Any,
) -> list[TakenGroup]:
    """What a consumer gets that asks once. Its session is the token up to the last slash."""
    return list(deliveries(ledger).take(groups, token, hold_s, purpose, **how).groups)


def ack(ledger: Ledger, token: str, *groups: str) -> None:
    """Acknowledges these groups, or all that is held under the token."""
    deliveries(ledger).ack(token, groups)
