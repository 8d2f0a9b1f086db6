"""The input of TRL's GRPOTrainer and its output: prompts that name tasks, and a row for each
rollout.

The names are those of TRL 1.16 (trl/trainer/grpo_trainer.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rollq import ContractError, Job, Traces, Trajectory
from rollq.images import refuse_images
from rollq.pip_extras import needs
from rollq.training.arrays import refuse_agent_rewards

with needs("trl"):
    from datasets import Dataset

PLACE = ("env", "split", "task")
"""The fields of a job that a prompt's message carries beside its role and content."""


def task_prompts(job: Job, tasks: Iterable[int]) -> Dataset:
    """The trainer's dataset: a prompt for each of these tasks of the job's environment and split.

    Its text is for logs only, because the environment writes the real prompt. To mix environments,
    join their datasets with `datasets.concatenate_datasets`.
    """
    place = {"role": "user", "env": job.env, "split": job.split}
    return Dataset.from_list(
        [
            {"prompt": [{**place, "task": task, "content": f"{job.env} {job.split}, task {task}"}]}
            for task in tasks
        ]
    )


def rollq_reward(*, episode_reward: list[float | None], **_: Any) -> list[float | None]:
    """The trainer's reward function: the environment's grades. A dead member has None, which enters
    no baseline.
    """
    return episode_reward


def place_of(prompt: Any) -> dict[str, Any]:
    """Environment, split and task, from the prompt's last message."""
    message = prompt[-1] if isinstance(prompt, list) and prompt else None
    if not isinstance(message, Mapping) or not set(PLACE) <= message.keys():
        raise ContractError(
            f"a prompt names no task: its message needs {', '.join(PLACE)}, as in the dataset of"
            f" rollq_integrations.trl.task_prompts, not {repr(prompt)[:100]}"
        )
    return {name: message[name] for name in PLACE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One episode as TRL takes it, each field under TRL's name for it. `completion_ids`, `logprobs`
    and `env_mask` have one entry per token of the response.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    """The engine's; 0.0 where `env_mask` is 0."""
    env_mask: list[int]
    """1 where the policy sampled the token, else 0."""
    episode_reward: float | None
    job_id: str | None
    """The job, for reward functions and logs of your own; None for a dead member."""


def row_of(
    trajectory: Trajectory | None, reward: float | None, padding: int, traces: Traces = "all"
) -> Row:
    """TRL takes no empty response. So where nothing was sampled, it is one masked token."""
    job_id, segments = None, []
    if trajectory:
        refuse_images(trajectory, "TRL")
        refuse_agent_rewards(trajectory, "TRL's synchronous trainer")
        job_id, segments = trajectory.job.id, trajectory.segments(traces)
    ids, response, logprobs, mask = [padding], [padding], [0.0], [0]
    if segments:
        if len(segments) > 1:  # an agent program's
            raise ContractError(
                f"{job_id} has {len(segments)} traces, and TRL's synchronous trainer takes one row "
                'a rollout: RolloutFunc(traces="longest"), or train on `batch.arrays()` or with '
                "rollq_integrations.trl.async_grpo"
            )
        [segment] = segments
        ids, response = list(segment.prompt_ids), list(segment.response_ids)
        logprobs, mask = list(segment.logprobs), list(segment.mask)
    return Row(
        prompt_ids=ids,
        completion_ids=response,
        logprobs=logprobs,
        env_mask=mask,
        episode_reward=reward,
        job_id=job_id,
    )
