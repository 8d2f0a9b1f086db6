"""`Client.evaluate`: an evaluation beside training, its result, and what happens to it
in restarts.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollq import Client, ContractError, Job, PullTimeout, Purpose, RollqError, SettingsError
from rollq.client.evaluation import evaluation_jobs
from rollq.errors import LedgerError
from rollq.ledger.evaluations import EvaluationStore
from rollq.ledger.ledger import Ledger
from tests.ledger_of import ledger_of
from tests.rollq.groups import ack, finish_groups, play_when_submitted, take
from tests.rollq.samples import play, reader
from tests.waiting import until

TASKS = [Job(env="shop", split="test", task=task) for task in range(2)]
"""As version 1 sampled them, which is what `play` journals."""
GROUPS = ("eval.1.shop.test.0", "eval.1.shop.test.1")


def play_tasks(ledger: Ledger, *rewards: Sequence[float], groups: Sequence[str] = GROUPS) -> None:
    """The rewards are those of the tries of each group."""
    play_when_submitted(ledger, dict(zip(groups, rewards, strict=False)))


def test_it_runs_beside_training(client: Client, ledger: Ledger) -> None:
    evaluation = client.evaluate(TASKS, 2, "1")
    assert not evaluation.done()
    finish_groups(ledger, "a")
    batch = client.consumer().next(1, 60)  # the trainer is not held up, and gets no eval group
    assert batch and [group.id for group in batch.groups] == ["a"]
    play_tasks(ledger, [1.0, 0.0], [1.0, 1.0])
    found = evaluation.result(60)
    assert evaluation.done()
    assert found.reward and found.reward.mean == 0.75
    assert {k: value.mean for k, value in found.pass_hat_k.items()} == {1: 0.75, 2: 0.5}
    assert (found.versions, found.other_versions, found.complete) == ({"1": 16}, {}, True)
    assert reader(ledger).group_states(GROUPS) == ["acked", "acked"]
    assert reader(ledger).standing(Purpose.EVAL).unacknowledged == 0


def test_the_call_returns_before_anything_is_submitted(redis_url: str, client: Client) -> None:
    """A Redis that does not answer holds up the evaluation, not the trainer."""
    ledger_of(client).redis.execute_command("CLIENT", "PAUSE", 1500, "ALL")
    evaluation = client.evaluate(TASKS, 1, "1")
    with pytest.raises(PullTimeout, match="run r: 0 of 2 tries were graded within 0 s"):
        evaluation.result(0)


def test_another_process_goes_on_and_plays_only_the_rest(
    redis_url: str, client: Client, ledger: Ledger
) -> None:
    first = client.evaluate(TASKS, 2, "1")
    play_tasks(ledger, [1.0, 1.0])
    first.close()
    with pytest.raises(RollqError, match="closed before its end"):
        first.result(60)
    with Client(redis_url, run="r") as other:
        second = other.evaluate(TASKS, 2, "1")
        play_tasks(ledger, [], [0.0, 0.0])
        found = second.result(60)
        assert [task.reward for task in found.tasks] == [1.0, 0.0]
        assert other.stats()["submitted"] == 4
        assert other.evaluate(TASKS, 2, "1").result(60) == found  # nothing is left to play
        assert other.stats()["claims"] == 4


def test_each_version_has_its_own_result(client: Client, ledger: Ledger) -> None:
    evaluations = {version: client.evaluate(TASKS, 1, version) for version in ("1", "2")}
    play_tasks(ledger, [1.0], [1.0])
    play_tasks(ledger, [0.0], [0.0], groups=["eval.2.shop.test.0", "eval.2.shop.test.1"])
    assert [evaluations[version].result(60).other_versions for version in ("1", "2")] == [
        {},
        {"1": 8},
    ]
    store = EvaluationStore(ledger.scripts)
    assert store.names() == ["1", "2"]
    assert [store.load(name).version for name in ("1", "2")] == ["1", "2"]  # type: ignore[union-attr]


def test_a_dead_try_leaves_its_task_out_until_it_is_played_again(
    client: Client, ledger: Ledger
) -> None:
    evaluation = client.evaluate(TASKS, 2, "1")
    play_tasks(ledger, [1.0], [1.0, 1.0])
    client.cancel(["r/eval.1.shop.test.0/1"])
    found = evaluation.result(60)
    assert (found.left_out, found.dead, len(found.tasks)) == (["eval.1.shop.test.0"], 1, 1)
    client.requeue(["r/eval.1.shop.test.0/1"])
    again = client.evaluate(TASKS, 2, "1")
    play(ledger, "r/eval.1.shop.test.0/1", 0.0)
    found = again.result(60)
    assert found.complete and [task.reward for task in found.tasks] == [0.5, 1.0]


def test_a_stored_result_outlives_the_records_of_its_groups(client: Client, ledger: Ledger) -> None:
    client.forget_after(1.0)
    evaluation = client.evaluate(TASKS, 1, "1")
    play_tasks(ledger, [1.0], [0.0])
    found = evaluation.result(60)
    # What their expiry does.
    assert ledger.redis.delete(*(ledger.keys.acked(name) for name in GROUPS)) == 2
    assert client.evaluate(TASKS, 1, "1").result(60) == found
    assert client.stats()["submitted"] == 2


def test_groups_that_redis_lost_are_submitted_again(client: Client, ledger: Ledger) -> None:
    evaluation = client.evaluate(TASKS, 1, "1")
    play_tasks(ledger, [1.0])
    until(lambda: reader(ledger).group_states(GROUPS[1:]) == ["open"])
    lost = [key for key in ledger.redis.scan_iter("rollq:{r}:*") if GROUPS[1].encode() in key]
    ledger.redis.delete(*lost, "rollq:{r}:sources")
    for index in ("queued", "open:eval"):
        for member in (GROUPS[1], f"r/{GROUPS[1]}/0"):
            ledger.redis.zrem(f"rollq:{{r}}:{index}", member)
    play_tasks(ledger, [], [0.0])
    assert evaluation.result(60).complete


def test_what_another_consumer_took_before_is_an_error(client: Client, ledger: Ledger) -> None:
    ledger.submit(evaluation_jobs("r", "1", TASKS, 1)[:1])
    play(ledger, f"r/{GROUPS[0]}/0")
    take(ledger, 1, "other/0", purpose=Purpose.EVAL)
    ack(ledger, "other/0")
    with pytest.raises(LedgerError, match="acknowledged before this evaluation had read it"):
        client.evaluate(TASKS, 1, "1").result(60)


def test_what_another_consumer_holds_counts_all_the_same(client: Client, ledger: Ledger) -> None:
    evaluation = client.evaluate(TASKS[:1], 1, "1")
    play_tasks(ledger, [1.0])
    take(ledger, 1, "other/0", purpose=Purpose.EVAL)
    assert evaluation.result(60).complete


def test_other_tasks_need_another_name(client: Client, ledger: Ledger) -> None:
    evaluation = client.evaluate(TASKS, 1, "1")
    play_tasks(ledger, [1.0], [1.0])
    evaluation.result(60)
    more = [Job(env="shop", split="train", task=5)]
    with pytest.raises(
        SettingsError,
        match="evaluation '1' of run r has other tasks or tries: 2 tasks with 1 tries",
    ):
        client.evaluate(more, 1, "1").result(60)
    assert client.stats()["submitted"] == 2  # it was refused before anything was submitted
    other = client.evaluate(more, 1, "1", name="train")
    play_tasks(ledger, [1.0], groups=["eval.train.shop.train.5"])
    assert other.result(60).name == "train"


def test_without_a_version_it_is_one_of_the_published_policy(
    client: Client, ledger: Ledger
) -> None:
    with pytest.raises(SettingsError, match="run r: no weight version was published"):
        client.evaluate(TASKS, 1)
    client.publish(4, "1")
    evaluation = client.evaluate(TASKS, 1)
    play_tasks(ledger, [1.0], [1.0])
    assert evaluation.result(60).version == "1"


def test_it_is_one_of_the_version_that_its_tasks_are_pinned_to(
    client: Client, ledger: Ledger
) -> None:
    client.publish(2, "2")
    pinned = [replace(task, weight_version="1") for task in TASKS]
    evaluation = client.evaluate(pinned, 1)
    play_tasks(ledger, [1.0], [1.0])
    assert evaluation.result(60).version == "1"
    with pytest.raises(
        ContractError, match="an evaluation of version '1' has no tasks that are pinned to '2'"
    ):
        client.evaluate([pinned[0], replace(pinned[1], weight_version="2")], 1)


def test_names_of_versions_become_names_of_groups() -> None:
    def name(version: str) -> str:
        return evaluation_jobs("r", version, TASKS, 1)[0].group

    assert name("step-12") == "eval.step-12.shop.test.0"
    assert (
        len({name("/ckpt/a"), name("/ckpt-a"), name("-ckpt-a"), name("x" * 80), name("x" * 81)})
        == 5
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"tasks": []}, "an evaluation needs at least one task"),
        ({"tasks": [3]}, "the tasks of an evaluation are Jobs, not 3"),
        ({"k": 0}, "k, the number of tries, must be a whole number of at least 1, not 0"),
        ({"tasks": [*TASKS, TASKS[0]]}, "an evaluation has each task once"),
        ({"k": 60_000}, "at most 1000 samples"),
        ({"version": 200}, "a weight version is a text of 1 to 256 characters, not 200"),
        ({"version": ""}, "a weight version is a text of 1 to 256 characters, not ''"),
        ({"name": 5}, "the name of an evaluation is a text, not 5"),
    ],
)
def test_wrong_calls(client: Client, call: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        client.evaluate(**{"tasks": TASKS, "k": 1, "version": "1", **call})


def test_a_result_is_waited_for_as_long_as_a_batch(client: Client, ledger: Ledger) -> None:
    evaluation = client.evaluate(TASKS, 1, "1")
    for timeout in (float("nan"), "1", True, 10**400):
        with pytest.raises(ContractError, match="timeout must be a number of seconds"):
            evaluation.result(timeout)  # type: ignore[arg-type]
    play_tasks(ledger, [1.0], [1.0])
    assert evaluation.result(float("inf")).complete


def test_its_thread_ends_with_the_client(redis_url: str) -> None:
    with Client(redis_url, run="r") as client:
        client.evaluate(TASKS, 1, "1")
        assert "rollq-evaluation" in {thread.name for thread in threading.enumerate()}
    assert "rollq-evaluation" not in {thread.name for thread in threading.enumerate()}
