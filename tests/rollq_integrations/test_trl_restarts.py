"""What TRL's GRPOTrainer trains again after a kill or an error, and what a checkpoint
acknowledges.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from rollq import Client
from rollq.errors import LedgerError
from rollq.ledger.ledger import Ledger
from rollq_integrations.trl import grpo, last_checkpoint
from rollq_integrations.trl.grpo import AckCallback
from tests.conftest import REPO
from tests.rollq_integrations.player import play_job, playing, queued
from tests.rollq_integrations.tiny import SIZE, model, prompts, rollouts, trainer, weights
from tests.waiting import until

torch.set_num_threads(1)  # tensors this small are slower with several
pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class Engines:
    """Takes weights, and serves none."""

    def update(self, path: str, version: str) -> None:
        pass


def test_a_trainer_killed_and_restarted_trains_exactly_what_it_would_have_trained(
    redis_url: str, ledger: Ledger, client: Client, tmp_path: Path
) -> None:
    """Killed in step 4 with a checkpoint of step 2: steps 3 and 4 are trained again, on the same
    groups.
    """
    line = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.rollq_integrations.killed_trainer",
        redis_url,
        str(tmp_path / "b"),
    ]
    with playing(redis_url):
        killed = subprocess.run(line, cwd=REPO, capture_output=True, text=True, timeout=170)
        assert killed.returncode == -9, killed.stderr[-2000:]
        assert client.stats()["groups_acked"] == 4
        resumed = trainer(rollouts(client), tmp_path / "b")
        resumed.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-2"))
    stats = client.stats()
    counts = {
        name: stats[name]
        for name in ("submitted", "done", "delivered", "groups_acked", "groups_held", "dead")
    }
    assert (counts.pop("groups_acked"), counts.pop("groups_held"), counts.pop("dead")) == (8, 0, 0)
    assert set(counts.values()) == {8 * SIZE}
    with Client(redis_url, run="whole") as other, playing(redis_url, "whole"):
        whole = trainer(rollouts(other), tmp_path / "a")
        whole.train()
    for again, first in zip(resumed.inputs, whole.inputs[2:], strict=True):
        for name in ("prompt_ids", "completion_ids", "completion_mask", "tool_mask", "advantages"):
            assert torch.equal(again[name], first[name]), name
    ends = weights(whole)
    for name, tensor in weights(resumed).items():
        # A sum of floats depends on where its numbers lie in memory. A step moves a weight by a
        # hundredth.
        torch.testing.assert_close(tensor, ends[name], rtol=0, atol=1e-3)
    assert not torch.equal(ends["lm_head.weight"], model().state_dict()["lm_head.weight"])


def test_without_checkpoints_each_step_is_acknowledged(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    training = trainer(rollouts(client), tmp_path, max_steps=2, save_strategy="no")
    seen = list[int]()

    class Look(AckCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            super().on_step_end(args, state, control)
            seen.append(client.stats()["groups_acked"])

    training.add_callback(Look(training.rollout_func))
    with playing(redis_url):
        training.train()
    assert seen == [2, 4]


def test_groups_that_a_checkpoint_holds_already_are_acknowledged_and_not_trained_again(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    """The trainer died after it saved the checkpoint, before the acknowledgement."""
    first = rollouts(client)
    training = trainer(first, tmp_path)
    with playing(redis_url):
        first(prompts(1, 2), training)
        first.close()
        second = rollouts(client)
        training.state.global_step = 1
        rows = second(prompts(3, 4), training)
    assert [job_id.split("/")[1] for job_id in rows["job_id"][::SIZE]] == ["step1.0.0", "step1.0.1"]
    assert client.stats()["groups_acked"] == 2
    second.close()


def test_a_step_that_was_acknowledged_cannot_come_again(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    func = rollouts(client)
    training = trainer(func, tmp_path)
    with playing(redis_url):
        func(prompts(1), training)
        func.trained(1)
        func.close()
        with pytest.raises(LedgerError, match="was trained and acknowledged by an earlier trainer"):
            func(prompts(1), training)


def test_a_group_of_other_weights_is_replaced(
    client: Client, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer was killed while its group was played, and the next one went on from an earlier
    step.
    """
    monkeypatch.setattr(grpo, "LOOK_S", 0.1)
    func, rows = (
        rollouts(client, fleet=Engines(), weights=tmp_path / "weights"),
        dict[str, list[Any]](),
    )
    training = trainer(func, tmp_path / "out")
    training.state.global_step = 3
    thread = threading.Thread(
        target=lambda: rows.update(func(prompts(1, 2), training)), daemon=True
    )
    thread.start()
    until(lambda: len(queued(ledger)) == 2 * SIZE)
    for job_id in queued(ledger):
        play_job(ledger, job_id, "2" if job_id == "r/step3.0.0/1" else "3")
    until(lambda: len(queued(ledger)) == SIZE)
    for job_id in queued(ledger):
        play_job(ledger, job_id, "3")
    thread.join(60)
    assert [job_id.split("/")[1] for job_id in rows["job_id"]] == ["step3.0.0.r1"] * SIZE + [
        "step3.0.1"
    ] * SIZE
    assert client.stats()["skips"] == {"stale": 1}
    func.trained(4)
    func.close()
    with pytest.raises(
        LedgerError,
        match=r"group r/step3.0.\d\S* was trained and acknowledged by an earlier trainer",
    ):
        func(prompts(1, 2), training)


def test_training_goes_on_in_the_same_process_after_an_error(
    client: Client, redis_url: str, tmp_path: Path
) -> None:
    func = rollouts(client)
    training, failures = trainer(func, tmp_path), iter([OSError("out of memory")])

    class Fail(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2 and (error := next(failures, None)):
                raise error

    training.add_callback(Fail())
    with playing(redis_url):
        with pytest.raises(OSError, match="out of memory"):
            training.train()
        training.train(resume_from_checkpoint=last_checkpoint(tmp_path))
    stats = client.stats()
    assert (stats["submitted"], stats["groups_acked"], stats["groups_held"]) == (8 * SIZE, 8, 0)


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    for step in (20, 100, 120, 140, "best", "100.bak"):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (20, 100, "best", "100.bak"):
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-140" / "trainer_state.json").write_text('{"epoch": 1')
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
