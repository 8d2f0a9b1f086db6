"""TRL's real AsyncGRPOTrainer takes optimiser steps on a CPU on the groups of a run."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from examples.trl_on_cpu import use_cpu
from rollq import Batch, Client, Job, TurnCredit
from rollq.client.waits import REPEAT_S
from rollq.errors import LedgerError, PullTimeout, SettingsError
from rollq.ledger.ledger import Ledger
from rollq_integrations.trl import task_prompts
from rollq_integrations.trl.async_grpo import FleetTransfer, RolloutWorker
from tests.rollq.groups import finish_groups
from tests.rollq_integrations.player import SAMPLED, play_job, playing, queued
from tests.rollq_integrations.tiny import ON_CPU, SIZE, model, tokenizer
from tests.waiting import until

torch.set_num_threads(1)  # tensors this small are slower with several
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
STEP = 4
"""Samples of a step; groups have SIZE, so that steps end in the middle of groups."""


@pytest.fixture(autouse=True, scope="module")
def on_cpu() -> None:
    """The examples have what TRL lacks on a CPU."""
    use_cpu()


class Engines:
    """A fleet that takes every update and notes it."""

    def __init__(self) -> None:
        self.updates: list[str] = []

    def update(self, path: str, version: str) -> None:
        assert (Path(path) / "model.safetensors").exists()
        self.updates.append(version)


class Stop(TrainerCallback):
    """Fails before the optimiser step that would follow that many."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.steps:
            raise KeyboardInterrupt


def trainer(
    worker: RolloutWorker, folder: Path, engines: Engines | None = None, **settings: Any
) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    args: dict[str, Any] = {
        "max_steps": 4,
        "per_device_train_batch_size": STEP,
        "num_generations": SIZE,
        "token_budget": 0,
        **ON_CPU,
    }
    path = folder / "model"
    model().save_pretrained(path)
    return AsyncGRPOTrainer(
        str(path),
        args=AsyncGRPOConfig(str(folder / "out"), **args | settings),
        train_dataset=task_prompts(Job(env="shop", task=0), range(1)),
        processing_class=tokenizer(),
        rollout_worker=worker,
        weight_transfer=FleetTransfer(worker, engines or Engines(), folder / "weights"),
        callbacks=[worker],
    )


def weights(training: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}


def submit(client: Client, ledger: Ledger, groups: int) -> None:
    """Groups g0, g1, ..., all played."""
    client.submit(
        [Job(env="shop", task=task, group=f"g{task}", size=SIZE) for task in range(groups)]
    )
    for job_id in queued(ledger):
        play_job(ledger, job_id, "0")


def test_steps_train_the_sampled_tokens_and_a_checkpoint_acknowledges_whole_groups(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    submit(client, ledger, 8)
    worker, engines = RolloutWorker(client), Engines()
    training = trainer(worker, tmp_path, engines, max_steps=3, save_steps=3)
    before, logs = weights(training), list[dict[str, float]]()
    training.log = lambda metrics, start_time=None: logs.append({**training._metrics["train"]})
    training.train()
    after = weights(training)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert logs[-1]["batch/trained_tokens_per_step"] == [STEP * SAMPLED] * 3
    assert logs[-1]["sample/staleness_max"][:STEP] == [0.0] * STEP
    assert engines.updates == ["0", "1", "2", "3"]
    assert client.published().step == 3
    stats = client.stats()
    assert stats["groups_acked"] == 3 * STEP // SIZE  # although the loader has taken more
    assert len(worker.rollout_buffer.taken) > 0


def test_a_trainer_restarted_from_a_checkpoint_trains_exactly_what_it_would_have_trained(
    client: Client, ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    """Checkpoint 2 holds two groups and two samples of the third."""
    submit(client, ledger, 8)
    training = trainer(RolloutWorker(client), tmp_path / "b")
    training.add_callback(Stop(3))
    with pytest.raises(KeyboardInterrupt):
        training.train()
    assert client.stats()["groups_acked"] == 2
    resumed = trainer(RolloutWorker(client), tmp_path / "b")
    resumed.train(resume_from_checkpoint=str(tmp_path / "b" / "out" / "checkpoint-2"))
    stats = client.stats()
    assert (stats["groups_acked"], stats["done"]) == (4 * STEP // SIZE, 8 * SIZE)
    other_ledger = Ledger(ledger.redis, "whole")
    with Client(redis_url, run="whole") as other:
        submit(other, other_ledger, 8)
        whole = trainer(RolloutWorker(other), tmp_path / "a")
        whole.train()
    ends = weights(whole)
    assert all(torch.equal(tensor, ends[name]) for name, tensor in weights(resumed).items())


def test_a_part_of_the_first_batch_that_was_acknowledged_since_cannot_come_again(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    """Checkpoint 1 holds two samples of the first group, and checkpoint 2 all of them."""
    submit(client, ledger, 8)
    trainer(RolloutWorker(client), tmp_path, max_steps=2, save_steps=1).train()
    worker = RolloutWorker(client)
    worker._temperature, worker._into = 1.0, 2
    worker.start()
    until(lambda: worker._error is not None)
    with pytest.raises(
        LedgerError, match="holds a part of batch 0, which a later one acknowledged"
    ):
        worker.check_health(300.0)
    worker.stop()


def test_samples_say_which_version_their_oldest_token_is_of(client: Client, ledger: Ledger) -> None:
    worker = RolloutWorker(client)
    worker._synced = [4, 6, 8]  # the trainer's versions 1, 2 and 3
    assert [worker._version({step}, None) for step in (8, 7, 6, 4, 3, 1)] == [3, 2, 2, 1, 0, -2]
    assert worker._version({8, 5}, None) == 1
    assert worker._version({8, -1}, 6) == 2
    assert worker._version({-1}, None) == 3
    assert worker._version({10}, None) == 5, (
        "of a trainer that was killed, and will be this one's version 5"
    )
    worker._sync_every = 2
    assert worker._version({10}, None) == 4


def test_stale_samples_are_counted_as_taken_but_not_as_trained(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    for step in range(4):
        client.publish(step)
        client.submit([Job(env="shop", task=step, group=f"g{step}", size=STEP)])
        for job_id in queued(ledger):
            play_job(ledger, job_id, str(step))
    worker = RolloutWorker(client)
    training = trainer(worker, tmp_path, max_steps=1, save_steps=1, max_staleness=0)
    training.state.global_step = 0
    worker.on_train_begin(training.args, training.state, None)
    worker.step = 3
    worker.update_model_version(1)
    worker.start()
    taken = [worker.rollout_buffer.get(timeout=30) for _ in range(4 * STEP)]
    worker._count(STEP)
    assert [sample.model_version for sample in taken[::STEP]] == [-2, -1, 0, 1]
    assert worker.state()["attributes"] == {"done": 3, "into": 0}
    worker.stop()


def test_the_health_check_says_who_waits_for_whom(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    client.submit([Job(env="shop", task=0)])
    worker = RolloutWorker(client)
    worker.check_health(REPEAT_S)
    with pytest.raises(PullTimeout, match=r"no sample for .* 1 queued job.* no worker is alive"):
        worker.check_health(0.0)


def test_the_health_check_raises_what_ended_the_worker(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    finish_groups(ledger, "g", seal=True, sampling={"temperature": 0.5})
    worker = RolloutWorker(client)
    training = trainer(worker, tmp_path)
    with pytest.raises(
        SettingsError, match=r"temperature 0\.5, and the trainer computes logprobs for 1:"
    ):
        training.train()


def test_a_sealed_run_that_is_over_is_an_error(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    client.submit([Job(env="shop", task=0)])
    client.cancel(run=True)
    worker = RolloutWorker(client)
    worker._temperature = 1.0
    worker.start()
    until(lambda: worker._error)
    with pytest.raises(LedgerError, match="is sealed and has no more groups: train fewer steps"):
        worker.check_health(300.0)
    worker.stop()


def test_a_worker_that_would_not_know_the_steps_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"AsyncGRPOTrainer\(callbacks=\[worker\]\)"):
        RolloutWorker(client).start()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"token_budget": 4096}, "token_budget=0"),
        ({"token_budget": None}, "token_budget=0"),
        ({"max_steps": -1}, "max_steps="),
        (
            {"restore_callback_states_from_checkpoint": True},
            "restore_callback_states_from_checkpoint=False",
        ),
    ],
)
def test_settings_under_which_nothing_could_be_acknowledged_or_ended_are_refused(
    client: Client, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        trainer(RolloutWorker(client), tmp_path, **settings)


def test_credit_by_turn_is_refused(client: Client) -> None:
    with pytest.raises(SettingsError, match="no credit by turn"):
        RolloutWorker(client, advantages=TurnCredit())  # type: ignore[arg-type]


def test_the_worker_waits_while_the_trainer_is_behind(
    client: Client, redis_url: str, ledger: Ledger
) -> None:
    worker = RolloutWorker(client)
    worker._temperature = 1.0
    worker.update_model_version(1)
    jobs = [Job(env="shop", task=task, group=f"g{task}", size=32) for task in range(4)]
    threading.Thread(target=client.submit, args=(jobs,), daemon=True).start()
    with playing(redis_url):
        worker.start()
        until(worker.rollout_buffer.full)
        samples = [worker.rollout_buffer.get(timeout=30) for _ in range(4 * 32)]
    worker.stop()
    assert len({sample.group_id for sample in samples}) == 4
    assert [sum(sample.completion_mask) for sample in samples] == [SAMPLED] * 128
    assert {len(sample.input_ids) - len(sample.old_log_probs) for sample in samples} == {0}


def test_a_checkpoint_goes_on_behind_a_batch_in_which_nothing_was_sampled(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    """It holds batch 0, and a part of batch 2."""
    submit(client, ledger, 4)
    worker = RolloutWorker(client, name="t")
    put, steps = worker._put, list[int]()

    def put_all_but_one(batch: Batch, skip: int) -> int:
        steps.append(batch.step)
        return 0 if batch.step == 1 else put(batch, skip)

    worker._put = put_all_but_one  # type: ignore[method-assign]
    worker._temperature, worker._done, worker._into, worker._synced = 1.0, 0, 1, [0]
    with client.consumer(name="t") as consumer:
        consumer.next(1, 60)
    worker.start()
    until(lambda: worker._error is not None or len(steps) >= 3)
    worker.stop()
    assert worker._error is None and steps[:2] == [1, 2]
