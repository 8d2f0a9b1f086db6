"""What a tracker is told of each batch, and that no tracker holds a trainer up."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollq import Client, ContractError, Job, SettingsError, StepMetrics
from rollq.client import tracking
from rollq.client.step_metrics import step_metrics
from rollq.errors import FailureClass
from rollq.ledger.ledger import Ledger
from rollq.ledger.workers.time_spent import report_time
from rollq.snapshot.run import RunSnapshot
from tests.rollq.agent_episodes import branching
from tests.rollq.groups import finish_groups, play_when_submitted
from tests.rollq.samples import claim, closed, group, observed, play, prompt, sampled, trajectory
from tests.rollq.token_rows import batch_of


class Notes:
    """A tracker that keeps what it is told."""

    def __init__(self, rollouts: int = 0, act: Callable[[], object] = lambda: None) -> None:
        self.rollouts, self.steps, self.closed, self._act = rollouts, list[StepMetrics](), 0, act

    def log(self, metrics: StepMetrics) -> None:
        self._act()
        self.steps.append(metrics)

    def close(self) -> None:
        self.closed += 1


def test_a_step_is_the_numbers_of_its_batch_and_of_the_run(ledger: Ledger, redis_url: str) -> None:
    ledger.pin_budgets({FailureClass.ENV: 1, FailureClass.JOB: 1})
    ledger.submit(group("a", min_viable=1))
    play(ledger, "r/a/0", reward=1.0, version="3")
    ledger.fail("r/a/1", claim(ledger, "r/a/1").lease, FailureClass.ENV, "it broke")
    notes = Notes()
    with Client(redis_url, run="r") as client:
        client.publish(4)
        report_time(ledger.scripts, "w", {"engine": 2.5, "environment": 0.5})
        finish_groups(ledger, "b", reward=0.25, seal=True)
        for batch in client.batches(1, track=notes):
            batch.ack()
    first, second = notes.steps
    assert (first.step, second.step, notes.closed) == (0, 1, 1)
    assert first.rollouts == []
    numbers = {name.removeprefix("rollq/"): value for name, value in first.numbers.items()}
    assert {name: numbers[name] for name in numbers if "/" not in name} == {
        "policy_step": 4.0,
        "groups": 1.0,
        "dead": 1.0,
        "redelivered": 0.0,
        "reward_mean": 1.0,
        "reward_min": 1.0,
        "reward_max": 1.0,
        "pass_rate": 1.0,
        "turns_mean": 2.0,
        "sampled_tokens_mean": 4.0,
        "tokens_mean": 11.0,
        "tokens_max": 11.0,
        "staleness_mean": 1.0,
        "staleness_max": 1.0,
    }
    assert numbers["stops/done"] == 1.0
    assert numbers["failures/env"] == 1.0
    assert (numbers["seconds/engine"], numbers["seconds/environment"]) == (2.5, 0.5)
    assert (second.numbers["rollq/reward_mean"], second.numbers["rollq/pass_rate"]) == (0.25, 0.0)
    assert "rollq/tokens_per_s" in second.numbers


def test_a_few_rollouts_as_text(ledger: Ledger, redis_url: str) -> None:
    finish_groups(ledger, "a", "b", seal=True)
    notes = Notes(rollouts=3)
    with Client(redis_url, run="r") as client:
        for batch in client.batches(2, track=notes, reward=lambda trajectory: 7.0):
            batch.ack()
    [step] = notes.steps
    assert [(row["job"], row["reward"], row["turns"]) for row in step.rollouts] == [
        ("r/a/0", 7.0, 2),
        ("r/a/1", 7.0, 2),
        ("r/b/0", 7.0, 2),
    ]
    assert step.rollouts[0]["text"] == (
        "system: Be brief.\n\nuser: Hello\n\nassistant: hm\n\ntool: It is "
        "red.\n\nassistant: hm\n\ntool: It is red."
    )


def test_conversations_of_an_agent_and_calls_are_in_the_text() -> None:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at": "it"}'},
    }
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    called = replace(
        observed(0),
        message={"role": "assistant", "content": None, "tool_calls": [call]},
        replies=[{"role": "tool", "content": parts}],
    )
    loop = replace(trajectory(), events=[prompt(), sampled(0), called, closed()])
    run = RunSnapshot(run="r", at=0.0, counts={"failures": {}}, standings={})
    of_agent, of_loop = step_metrics(batch_of([branching(), loop]), run, None, 2).rollouts
    assert [text.partition("\n")[0] for text in str(of_agent["text"]).split("\n\n----\n\n")] == [
        "system: Be brief.",
        "system: You help.",
        "system: Be brief.",
    ]
    assert str(of_loop["text"]).endswith('assistant: look {"at": "it"}\n\ntool: See (image_url)')


def test_a_tracker_that_is_slow_or_fails_holds_nothing_up(
    ledger: Ledger,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracking, "MOST_QUEUED", 2)
    finish_groups(ledger, "a", "b", "c", seal=True)
    go = threading.Event()

    def fail() -> None:
        go.wait(60)
        raise OSError("no route")

    notes = Notes(act=fail)
    with caplog.at_level(logging.WARNING, "rollq"), Client(redis_url, run="r") as client:
        for batch in client.batches(1, track=notes):
            batch.ack()
            if batch.step == 2:
                go.set()
    assert notes.closed == 1
    assert "Notes: 2 steps wait for it, so step 2 is not sent" in caplog.text
    assert "Notes did not take step 0: OSError: no route" in caplog.text


def test_evaluations_report_to_the_tracker_of_the_batches(
    ledger: Ledger, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()
    tasks = [Job(env="tau2:x", split="test", task=0), Job(env="tau2:x", split="test", task=1)]
    finish_groups(ledger, "a", "b")
    with caplog.at_level(logging.WARNING, "rollq"), Client(redis_url, run="r") as client:
        client.publish(20, "policy-20")
        with client.consumer(track=notes) as consumer:
            assert consumer.next(1, 60)
            evaluations = [
                client.evaluate(tasks, 2, version, track=notes)
                for version in ("policy-20", "other")
            ]
            for version in ("policy-20", "other"):
                rewards = {0: (1.0, 0.0), 1: (1.0, 1.0)}
                play_when_submitted(
                    ledger,
                    {
                        f"eval.{version}.tau2-x.test.{task}": tries
                        for task, tries in rewards.items()
                    },
                )
            for evaluation in evaluations:
                evaluation.result(60)
            assert consumer.next(1, 60)
    assert notes.closed == 1
    assert [step.step for step in notes.steps] in ([0, 20, 1], [0, 1, 20])
    [found] = [step for step in notes.steps if step.step == 20]
    assert found.rollouts == ()
    assert found.numbers == {
        f"rollq/eval/tau2-x/test/{name}": value
        for name, value in {
            "reward_mean": 0.75,
            "reward_low": 0.5,
            "reward_high": 1.0,
            "pass_hat_1": 0.75,
            "pass_hat_2": 0.5,
            "tasks": 2.0,
            "turns_mean": 2.0,
        }.items()
    }
    assert (
        "did not take the evaluation of other: SettingsError: it is not known which step 'other' is"
        in caplog.text
    )


def test_a_tracker_ends_with_its_client(
    ledger: Ledger, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers come and go, and what each has added is sent when it closes."""
    notes = Notes()
    finish_groups(ledger, "a", "b")
    with caplog.at_level(logging.WARNING, "rollq"), Client(redis_url, run="r") as client:
        with pytest.raises(ContractError):
            client.consumer(order="backwards", track=notes)  # type: ignore[arg-type]
        evaluation = client.evaluate([Job(env="shop", task=0)], 1, "7", track=notes)
        for step in range(2):
            with client.consumer(track=notes) as consumer:
                assert consumer.next(1, 60)
            assert (len(notes.steps), notes.closed) == (step + 1, 0)
        play_when_submitted(ledger, {"eval.7.shop.train.0": [1.0]}, "7")
        evaluation.result(60)
    assert ([step.step for step in notes.steps], notes.closed) == ([0, 0, 7], 1)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "track", [5, object(), ["trackio"], "no-such:p:4", "", "wandb:p:x", "wandb:p:4:"]
)
def test_what_is_no_tracker(client: Client, track: object) -> None:
    for use in (
        client.consumer,
        lambda track: client.evaluate([Job(env="shop", task=0)], 1, "7", track=track),
    ):
        with pytest.raises(SettingsError, match="track"):
            use(track=track)
    assert client.stats()["submitted"] == 0


def test_one_tracker_has_one_number_of_rollouts(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "named", lambda text: lambda run: Notes())
    client.consumer(track="wandb:shop:4")
    client.consumer(track="wandb:other")
    client.consumer(track="wandb:other:0")
    with pytest.raises(
        SettingsError,
        match="wandb:shop:4 and wandb:shop are one tracker: ask for the same rollouts",
    ):
        client.consumer(track="wandb:shop")


def test_the_end_does_not_wait_for_ever(
    ledger: Ledger,
    redis_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_S", 0.05)
    finish_groups(ledger, "a", "b", seal=True)
    go = threading.Event()
    notes = Notes(act=lambda: go.wait(60))
    with Client(redis_url, run="r") as client:
        for batch in client.batches(1, track=notes):
            batch.ack()
    assert "Notes took longer than 0.05 s: some steps are not sent" in caplog.text
    assert (notes.steps, notes.closed) == ([], 0)
    [waiting] = [thread for thread in threading.enumerate() if thread.name == "rollq-tracker"]
    assert waiting.daemon  # the program ends without it
    go.set()
    waiting.join(60)
    assert (len(notes.steps), notes.closed) == (1, 0)
