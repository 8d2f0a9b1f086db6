"""TRL's real AsyncDistillationTrainer takes optimiser steps on a CPU on groups that a teacher has
scored.
"""

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.experimental.async_distillation import async_distillation_trainer

from examples.trl_on_cpu import use_cpu
from rollq import Client, Job
from rollq.errors import SettingsError
from rollq.ledger.job_extras import save_extras
from rollq.ledger.ledger import Ledger
from rollq.teachers import logprobs_of, top_ids_of, top_logprobs_of
from rollq.trajectory_extras import Extra
from rollq.wire.events import encode_event
from rollq_integrations.trl import task_prompts
from rollq_integrations.trl.async_distillation import DistillationWorker
from rollq_integrations.trl.async_grpo import FleetTransfer
from tests.rollq.samples import claim, closed, journal, prompt
from tests.rollq_integrations.player import SAMPLED, episode, queued
from tests.rollq_integrations.test_trl_async import Engines
from tests.rollq_integrations.tiny import ON_CPU, SIZE, model, tokenizer

torch.set_num_threads(1)  # tensors this small are slower with several
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers.*"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
TOP = [7, 8]
"""The teacher's likeliest tokens everywhere, with the probabilities 0.5 and 0.25."""
OWN = -3.0
"""Its logprob of each sampled token."""


@pytest.fixture(autouse=True, scope="module")
def on_cpu() -> None:
    use_cpu()
    async_distillation_trainer.get_peak_flops_per_device = lambda *_: None  # as in use_cpu


def play_scored(ledger: Ledger, job_id: str) -> None:
    lease = claim(ledger, job_id, f"token-{job_id}").lease
    *some, end = episode(job_id, "0")
    index = journal(ledger, job_id, lease, some)

    def extra(typecode: str, dtype: str, values: list[Any], *shape: int) -> Extra:
        data = array(typecode, values * SAMPLED).tobytes()
        return Extra(dtype=dtype, shape=(SAMPLED, *shape), data=data)

    logs = [math.log(0.5), math.log(0.25)]
    extras = {
        logprobs_of("math"): extra("f", "float32", [OWN]),
        top_ids_of("math"): extra("I", "uint32", TOP, 2),
        top_logprobs_of("math"): extra("f", "float32", logs, 2),
    }
    save_extras(ledger.scripts, job_id, lease, extras)
    blob = encode_event(end, job_id)
    ledger.complete(job_id, lease, index, [blob], turns=2, sampled_tokens=SAMPLED, total_tokens=13)


def play_nothing(ledger: Ledger, job_id: str) -> None:
    lease = claim(ledger, job_id, f"token-{job_id}").lease
    index = journal(ledger, job_id, lease, [prompt(1, 2)])
    blob = encode_event(closed(0.0), job_id)
    ledger.complete(job_id, lease, index, [blob], turns=0, sampled_tokens=0, total_tokens=2)


def trainer(worker: DistillationWorker, folder: Path, **settings: Any) -> Any:
    from trl.experimental.async_distillation import (
        AsyncDistillationConfig,
        AsyncDistillationTrainer,
    )

    args: dict[str, Any] = {
        "max_steps": 2,
        "per_device_train_batch_size": SIZE,
        "token_budget": 0,
        **ON_CPU,
        # its own choice is a kernel of GPUs
        "model_init_kwargs": {"attn_implementation": "sdpa", "dtype": "float32"},
    }
    path = folder / "model"
    model().save_pretrained(path)
    return AsyncDistillationTrainer(
        str(path),
        args=AsyncDistillationConfig(str(folder / "out"), **args | settings),
        train_dataset=task_prompts(Job(env="shop", task=0), range(1)),
        processing_class=tokenizer(),
        rollout_worker=worker,
        weight_transfer=FleetTransfer(worker, Engines(), folder / "weights"),
        callbacks=[worker],
    )


def submit(client: Client, ledger: Ledger, teachers: dict[str, Any]) -> None:
    client.submit(
        [
            Job(env="shop", task=task, group=f"g{task}", size=SIZE, teachers=teachers)
            for task in range(4)
        ]
    )
    for job_id in queued(ledger):
        play_nothing(ledger, job_id) if "/g0/" in job_id else play_scored(ledger, job_id)


def test_steps_train_towards_the_scores_of_the_run(
    client: Client, ledger: Ledger, tmp_path: Path
) -> None:
    """A group in which nothing was sampled is passed over."""
    submit(client, ledger, {"math": {"top_k": 2}})
    training = trainer(DistillationWorker(client, teacher="math"), tmp_path)
    seen = []
    loss_of = training.compute_loss

    def compute_loss(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        seen.append({name: inputs[name] for name in inputs})
        return loss_of(model, inputs, *args, **kwargs)

    training.compute_loss = compute_loss
    before = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}
    training.train()
    after = training.model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    for inputs in seen:
        mask = inputs["completion_mask"].bool()
        own = inputs["input_ids"][mask]
        ids, logprobs = (inputs[f"teacher_topk_{what}"][mask] for what in ("ids", "logprobs"))
        assert mask.sum() == SIZE * SAMPLED and ids[:, :2].tolist() == [TOP] * len(own)
        assert ids[:, 2].tolist() == own.tolist() and (logprobs[:, 2] == OWN).all()
    assert len(seen) == 2 and client.stats()["groups_acked"] == 3


@pytest.mark.parametrize(
    ("teachers", "settings", "says"),
    [
        ({"math": {}}, {}, "submit them with teachers.code.top_k"),
        ({"math": {"top_k": 2}}, {"teacher_temperature": 0.5}, "leave it at 1"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    client: Client, ledger: Ledger, tmp_path: Path, teachers: Any, settings: Any, says: str
) -> None:
    submit(client, ledger, teachers)
    teacher = "math" if settings else "code"
    with pytest.raises(SettingsError, match=says):
        trainer(DistillationWorker(client, teacher=teacher), tmp_path, **settings).train()
