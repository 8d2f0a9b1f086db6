"""A mixture that rests tasks, on a real Redis: its producer is killed, loses Redis's last writes,
and goes on.
"""

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollq import Batch, Client, ContractError, Job
from rollq.ledger.ledger import Ledger
from rollq.ledger.solve_rates import SolveRateStore
from rollq.training.mixture import Mixture, Part, Rest
from tests.rollq.client.producing.test_lost_groups import Tail
from tests.rollq.client.producing.test_producer_killed import MOST, Death, Killed
from tests.rollq.samples import play, reader
from tests.waiting import until

PAGE = Path(__file__).resolve().parents[4] / "docs/trainer.md"
GROUPS, STEPS = 2, 8


def mixture(client: Client) -> Mixture:
    parts = [
        Part(
            [Job(env="shop", task=task, size=2) for task in range(4)], weight=lambda step: 1 + step
        ),
        Part([Job(env="maths", task=task, size=2) for task in range(4)], weight=2),
    ]
    return Mixture(parts, GROUPS, STEPS, seed=3, rest=Rest(client.solve_rates(), steps=2))


def names(jobs: Mixture) -> list[str]:
    return [job.group for job in jobs if job.sample == 0]


def play_all(ledger: Ledger) -> None:
    """Even tasks are solved always, odd ones by every other sample."""
    for name in ledger.redis.zrange(ledger.keys.groups("open", "train"), 0, -1):
        task = int(name.decode().split(".")[2])
        for sample in range(2):
            play(ledger, f"r/{name.decode()}/{sample}", 1.0 if task % 2 == 0 else float(sample))


def train(client: Client, ledger: Ledger, seen: dict[str, int]) -> None:
    """Plays and trains what there is. `seen`: groups that were handed out, by their place in the
    run.
    """
    play_all(ledger)
    rates = client.solve_rates()
    with client.consumer() as consumer:
        while reader(ledger).stats()["groups_ready"]:
            batch = consumer.next(1)
            assert batch
            for group in batch.groups:
                assert group.id not in seen
                seen[group.id] = group.seq
                rates.add(group)
            batch.ack()


@pytest.mark.parametrize("sent", [False, True], ids=["before", "after"])
def test_a_killed_producer_goes_on_with_the_same_groups(
    redis_url: str, client: Client, ledger: Ledger, patch: pytest.MonkeyPatch, sent: bool
) -> None:
    """Each life is some commands longer than the one before, and between two of them the trainer
    finds out more.
    """
    seen: dict[str, int] = {}
    for life in range(1, MOST):
        with Client(redis_url, run="r") as producer:
            Death(patch, 3 * life, sent=sent)
            try:
                producer.submit(mixture(producer), source="mixture")
                break
            except Killed:
                pass
            finally:
                patch.undo()
        train(client, ledger, seen)
    assert life > 10
    train(client, ledger, seen)
    assert sorted(seen.values()) == list(range(1, GROUPS * STEPS + 1))
    assert sorted(seen, key=seen.__getitem__) == names(mixture(client))
    found = client.solve_rates()
    known: list[Mapping[str, float]] = [found(step) for step in range(STEPS)]
    assert sum(map(bool, known)) > 2  # the rates were not the same at all steps
    stats = client.stats()
    assert (stats["delivered"], stats["dead"]) == (2 * GROUPS * STEPS, 0)


def test_what_redis_lost_is_said_again(redis_url: str, client: Client, ledger: Ledger) -> None:
    """The groups, and what their order followed from: else the next process would draw others."""
    seen: dict[str, int] = {}
    tail = Tail(ledger.redis)

    rates = client.solve_rates()

    def watched(step: int) -> dict[str, float]:
        if step == 3:
            tail.begin()
            for task in range(3):
                SolveRateStore(ledger.scripts).add(f"maths.train.{task}", "g", 1.0)
        elif step == 6:
            tail.lose()  # with the rates, and what was known at steps 3 to 5
        return rates(step)

    made = mixture(client)
    done = client.submit(
        Mixture(made.parts, GROUPS, STEPS, 3, Rest(watched, steps=2)), source="mixture"
    )
    assert len(done.new) == 2 * GROUPS * STEPS
    with Client(redis_url, run="r") as other:
        again = other.submit(mixture(other), source="mixture")
    assert not again.new
    assert rates(3)
    train(client, ledger, seen)
    assert sorted(seen, key=seen.__getitem__) == names(made)


def test_a_part_without_a_task_of_this_name_is_the_workers_matter(client: Client) -> None:
    submitted = client.submit(Mixture([Part([Job(env="no-such-environment", task=0)])], 1, 1))
    assert submitted.new == ["r/no-such-environment.train.0/0"]


def test_damaged_rates_are_named(client: Client, ledger: Ledger) -> None:
    ledger.redis.hset(ledger.keys.solved_at_steps, 0, b"\x01")
    with pytest.raises(ContractError, match="the solve rates of run r"):
        client.solve_rates()(0)


def test_the_page(client: Client, redis_url: str, ledger: Ledger) -> None:
    """As printed, but for the number of steps. Groups whose rewards agree are in no batch, and
    their tasks rest.
    """
    [snippet] = [
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if "Mixture(" in code
    ]
    assert "steps=200" in snippet
    trained: list[Batch] = []
    page: dict[str, Any] = {"train": trained.append}
    exec(snippet.replace("steps=200", "steps=4").replace("size=4", "size=2"), page)
    with Client(redis_url, run="r") as producer:
        page["produce"](producer)
    play_all(ledger)
    consumer = threading.Thread(target=page["train_all"], args=(client,), daemon=True)
    consumer.start()
    until(lambda: not consumer.is_alive())
    groups = [group for batch in trained for group in batch.groups]
    assert groups and all(group.trajectories[0].job.task % 2 for group in groups)
    assert reader(ledger).stats()["skips"] == {"unequal_rewards": 32 - len(groups)}
    latest = client.solve_rates()
    assert set(latest(9).values()) == {0.5, 1.0}
