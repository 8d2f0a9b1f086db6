"""TRL's real GRPOTrainer takes optimiser steps on a CPU on groups of a run, also across a kill."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rollq import Client, Job
from rollq.errors import ContractError, LedgerError, MissingGroups, SettingsError
from rollq.job import History, Purpose
from rollq.ledger.ledger import Ledger
from rollq_integrations.trl import grpo, rollq_reward
from rollq_integrations.trl.rows import row_of
from tests.rollq.agent_episodes import branching, rewarded_apart
from tests.rollq.groups import finish_groups
from tests.rollq_integrations.player import SAMPLED, play_job, playing, queued
from tests.rollq_integrations.tiny import SIZE, prompts, rollouts, trainer, weights
from tests.waiting import until

torch.set_num_threads(1)  # tensors this small are slower with several
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


def test_each_step_trains_the_sampled_tokens_of_its_groups_and_no_others(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    func = rollouts(client)
    training = trainer(func, tmp_path, max_steps=2, save_steps=1)
    before = weights(training)
    with playing(redis_url):
        training.train()
    after = weights(training)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    for inputs in training.inputs:
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        assert mask.sum(1).tolist() == [SAMPLED] * (2 * SIZE)
        # Engine logprobs are -0.5 where the policy sampled, and the trainer has them at the same
        # places.
        assert torch.equal(inputs["sampling_per_token_logps"] == -0.5, mask.bool())
    stats = client.stats()
    assert (stats["groups_acked"], stats["delivered"]) == (4, 4 * SIZE)


def test_rows_come_in_the_order_of_the_prompts_whatever_was_finished_first(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    func, rows = rollouts(client), dict[str, list[Any]]()
    training = trainer(func, tmp_path)
    thread = threading.Thread(
        target=lambda: rows.update(func(prompts(5, 2, 7), training)), daemon=True
    )
    thread.start()
    until(lambda: len(queued(ledger)) == 3 * SIZE)
    for job_id in reversed(queued(ledger)):
        play_job(ledger, job_id)
    thread.join(60)
    tasks = [client.trajectory(job_id).job.task for job_id in rows["job_id"]]
    assert tasks == [task for task in (5, 2, 7) for _ in range(SIZE)]
    assert [job_id.split("/")[2] for job_id in rows["job_id"]] == ["0", "1", "2"] * 3
    for row, job_id in enumerate(rows["job_id"]):
        trajectory = client.trajectory(job_id)
        assert rows["prompt_ids"][row] + rows["completion_ids"][row] == list(trajectory.tokens)
        assert [0] * len(rows["prompt_ids"][row]) + rows["env_mask"][row] == list(trajectory.mask)
        assert rows["episode_reward"][row] == trajectory.reward
    func.close()


def test_a_dead_member_is_masked_and_enters_no_baseline(
    client: Client, ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    training = trainer(rollouts(client, size=SIZE, min_viable=2), tmp_path, max_steps=1)
    with playing_but(client, ledger, "r/step0.0.1/1"):
        training.train()
    [inputs] = training.inputs
    lengths = (inputs["completion_mask"] * inputs["tool_mask"]).sum(1)
    dead = int((lengths == 0).nonzero().item())
    assert sorted(lengths.tolist()) == [0] + [SAMPLED] * (2 * SIZE - 1)
    assert inputs["advantages"][dead] == 0.0
    assert (
        inputs["advantages"].sum().abs() < 1e-5
    )  # in each group those of the others agree with their own mean


def playing_but(client: Client, ledger: Ledger, cancelled: str) -> Any:
    """Plays, once this job is cancelled."""

    class Playing:
        def __enter__(self) -> None:
            self.thread = threading.Thread(target=self.play, daemon=True)
            self.thread.start()

        def play(self) -> None:
            until(lambda: len(queued(ledger)) == 2 * SIZE)
            client.cancel([cancelled])
            for job_id in queued(ledger):
                play_job(ledger, job_id)

        def __exit__(self, *error: object) -> None:
            self.thread.join(60)

    return Playing()


def test_a_dropped_group_is_replaced_and_then_given_up(
    client: Client, ledger: Ledger, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "LOOK_S", 0.1)
    func, rows = rollouts(client), dict[str, list[Any]]()
    training = trainer(func, tmp_path)
    thread = threading.Thread(
        target=lambda: rows.update(func(prompts(1, 2, 3), training)), daemon=True
    )
    thread.start()
    until(lambda: len(queued(ledger)) == 3 * SIZE)
    client.cancel(group="step0.0.0")
    client.cancel(group="step0.0.1")
    for job_id in queued(ledger):
        play_job(ledger, job_id)
    until(lambda: len(queued(ledger)) == 2 * SIZE)
    client.cancel(group="step0.0.1.r1")
    for job_id in queued(ledger):
        play_job(ledger, job_id)
    thread.join(60)
    groups = [job_id and job_id.split("/")[1] for job_id in rows["job_id"]]
    assert groups == ["step0.0.0.r1"] * SIZE + [None] * SIZE + ["step0.0.2"] * SIZE
    assert rows["episode_reward"][SIZE : 2 * SIZE] == [None] * SIZE
    assert rows["env_mask"][SIZE : 2 * SIZE] == [[0]] * SIZE
    func.close()


def test_a_step_without_any_group_is_an_error(
    client: Client, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpo, "LOOK_S", 0.1)
    func = rollouts(client, refill=0)
    thread = threading.Thread(
        target=lambda: (
            until(lambda: len(queued(ledger)) == SIZE),
            client.cancel(group="step0.0.0"),
        ),
        daemon=True,
    )
    thread.start()
    with pytest.raises(MissingGroups, match="all groups of step 0 were dropped"):
        func(prompts(1), trainer(func, tmp_path))
    func.close()


def test_several_calls_of_one_step_get_groups_of_their_own(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    training = trainer(
        rollouts(client),
        tmp_path,
        max_steps=2,
        save_steps=1,
        per_device_train_batch_size=SIZE,
        gradient_accumulation_steps=2,
        steps_per_generation=1,
    )
    with playing(redis_url):
        training.train()
    assert client.stats()["groups_acked"] == 4


def test_the_fleet_gets_the_weights_of_each_step_and_its_version_is_published(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    updates: list[tuple[str, str, int | None]] = []

    class Noting:
        def update(self, path: str, version: str) -> None:
            published = client.published()
            assert (Path(path) / "model.safetensors").exists()
            updates.append((path, version, published and published.step))

    func = rollouts(client, fleet=Noting(), weights=tmp_path / "weights")
    training = trainer(func, tmp_path / "out", max_steps=3, save_strategy="no")
    with playing(redis_url):
        training.train()
    folder = str(tmp_path / "weights" / "r")
    assert updates == [(folder, "0", None), (folder, "1", 0), (folder, "2", 1)]
    assert client.published().step == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"history": History.TEMPLATE}, "use neither, or AsyncGRPOTrainer"),
        ({"context": {"kind": "summary", "over": 9}}, "use neither, or AsyncGRPOTrainer"),
        ({"purpose": Purpose.EVAL}, "plays jobs of purpose train"),
        ({"weights": "/tmp/w"}, "a fleet needs the folder"),
    ],
)
def test_what_makes_no_rollout_function(
    client: Client, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        rollouts(client, **changes)


@pytest.mark.parametrize(
    "wrong",
    [
        ["a text"] * SIZE,
        [[{"role": "user", "content": "hello"}]] * SIZE,
        prompts(1)[:2],
        [*prompts(1)[:2], *prompts(2)[:1]],
    ],
)
def test_prompts_that_name_no_group(client: Client, tmp_path: Path, wrong: Sequence[Any]) -> None:
    func = rollouts(client)
    with pytest.raises(ContractError, match="prompt"):
        func(wrong, trainer(func, tmp_path))


def test_settings_that_would_train_something_else_are_refused(
    client: Client, tmp_path: Path
) -> None:
    func = rollouts(client, sampling={"temperature": 0.5})
    training = trainer(func, tmp_path)
    with pytest.raises(
        SettingsError, match=r"temperature 0\.5, and the trainer computes logprobs for 1:"
    ):
        func(prompts(1), training)
    training = trainer(rollouts(client), tmp_path, chat_template_kwargs={"enable_thinking": False})
    with pytest.raises(SettingsError, match=r"give Job\(template_kwargs=\) what"):
        training.rollout_func(prompts(1), training)
    training = trainer(rollouts(client), tmp_path)
    training.model.eval()
    with pytest.raises(SettingsError, match="evaluate with"):
        training.rollout_func(prompts(1), training)
    training = trainer(rollouts(client), tmp_path)
    training.args.eval_strategy = (
        "steps"  # known at the first step, not only at the first evaluation
    )
    with pytest.raises(SettingsError, match="evaluate with"):
        training.rollout_func(prompts(1), training)


def test_a_run_that_others_use_too_is_refused(
    client: Client, ledger: Ledger, redis_url: str, tmp_path: Path
) -> None:
    finish_groups(ledger, "theirs")
    func = rollouts(client)
    with pytest.raises(
        LedgerError, match="group r/theirs was not asked for: a trainer needs a run of its own"
    ):
        func(prompts(1), trainer(func, tmp_path))
    func.close()


def test_a_processor_pads_with_its_tokenizers_token(client: Client, tmp_path: Path) -> None:
    func = rollouts(client)
    training = trainer(func, tmp_path)
    wanted = training.processing_class.pad_token_id
    training.processing_class = SimpleNamespace(tokenizer=training.processing_class)
    [row] = func._rows([Job(env="shop", task=1, group="dropped")], {}, training)
    assert row.prompt_ids == [wanted]


def test_the_reward_function_passes_the_grades_on() -> None:
    assert rollq_reward(prompts=[], completions=[], episode_reward=[1.0, None]) == [1.0, None]


def test_a_rollout_of_several_traces_is_refused() -> None:
    with pytest.raises(
        ContractError, match="has 3 traces, and TRL's synchronous trainer takes one row a rollout"
    ):
        row_of(branching(), 1.0, 0)
    row = row_of(branching(), 1.0, 0, "main")
    assert (row.completion_ids, row.env_mask) == ([10, 11, 4, 5, 12], [1, 1, 0, 0, 1])


def test_agents_with_rewards_of_their_own_are_refused() -> None:
    with pytest.raises(ContractError, match=r"its agents have rewards of their own.*TRL's synchr"):
        row_of(rewarded_apart(), 1.0, 0, "main")
