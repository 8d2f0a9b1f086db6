"""Metrics of a training step or an evaluation for trackers: numbers, and a few rollouts as text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rollq.batch import Batch
from rollq.evaluation.result import Result, TaskResult
from rollq.evaluation.statistics import SUCCESS
from rollq.events import Message
from rollq.job import part_of_name
from rollq.snapshot.run import RunSnapshot
from rollq.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """One batch and its run at that moment, or the result of an evaluation."""

    step: int
    """`Batch.step`; of an evaluation, the step of its weights."""
    numbers: Mapping[str, float]
    """Metrics by name; docs/trackers.md has them all. One that is not known is left out."""
    rollouts: Sequence[Mapping[str, str | float]]
    """Rows of a table: job, task, reward, stop, turns, and the conversation as text."""


def step_metrics(
    batch: Batch, run: RunSnapshot, before: RunSnapshot | None, rollouts: int
) -> StepMetrics:
    """`before`: the run at the step before this one. `rollouts`: how many of the batch, from its
    first on.
    """
    numbers = {}
    for name, value in _numbers(batch, run, before):
        if value is not None:
            numbers[f"rollq/{name}"] = float(value)
    shown = zip(batch.trajectories[:rollouts], batch.rewards, strict=False)
    rows = [_row(trajectory, reward) for trajectory, reward in shown]
    return StepMetrics(step=batch.step, numbers=numbers, rollouts=rows)


def evaluation_metrics(result: Result, step: int) -> StepMetrics:
    """The numbers of each split apart: their tasks are not one sample."""
    splits: dict[tuple[str, str], list[TaskResult]] = {}
    for task in result.tasks:
        splits.setdefault((task.env, task.split), []).append(task)
    numbers = {}
    for (env, split), tasks in splits.items():
        place = f"{part_of_name(env)}/{part_of_name(split)}"
        for name, value in _of_result(replace(result, tasks=tasks)):
            if value is not None:
                numbers[f"rollq/eval/{place}/{name}"] = float(value)
    return StepMetrics(step=step, numbers=numbers, rollouts=())


def _of_result(result: Result) -> Iterator[tuple[str, float | None]]:
    reward = result.reward
    if reward:
        yield "reward_mean", reward.mean
        yield "reward_low", reward.low
        yield "reward_high", reward.high
    for k in {1, result.size}:
        yield f"pass_hat_{k}", fmean(result.pass_hat(k))
    yield "tasks", len(result.tasks)
    yield "turns_mean", fmean(episode.turns for episode in result.tries)


def _numbers(
    batch: Batch, run: RunSnapshot, before: RunSnapshot | None
) -> Iterator[tuple[str, float | None]]:
    yield "policy_step", batch.policy_step
    yield "groups", len(batch.groups)
    yield "dead", sum(len(group.dead) for group in batch.groups)
    yield "redelivered", sum(group.redelivered for group in batch.groups)
    if batch.trajectories:
        yield from _of_trajectories(batch.trajectories, batch.rewards)
    yield "staleness_mean", batch.staleness.mean
    yield "staleness_max", batch.staleness.max
    yield from _of_run(run, before)


def _of_trajectories(
    trajectories: Sequence[Trajectory], rewards: Sequence[float]
) -> Iterator[tuple[str, float]]:
    yield "reward_mean", fmean(rewards)
    yield "reward_min", min(rewards)
    yield "reward_max", max(rewards)
    yield "pass_rate", fmean(reward >= SUCCESS for reward in rewards)
    yield "turns_mean", fmean(trajectory.turns for trajectory in trajectories)
    yield "sampled_tokens_mean", fmean(trajectory.sampled_tokens for trajectory in trajectories)
    tokens = [sum(trajectory.traces) for trajectory in trajectories]
    yield "tokens_mean", fmean(tokens)
    yield "tokens_max", max(tokens)
    stops = Counter(str(trajectory.stop) for trajectory in trajectories)
    for stop, count in stops.items():
        yield f"stops/{stop}", count / len(trajectories)


def _of_run(run: RunSnapshot, before: RunSnapshot | None) -> Iterator[tuple[str, float]]:
    for failure, count in run.counts["failures"].items():
        yield f"failures/{failure}", count
    for wait, seconds in run.seconds.items():
        yield f"seconds/{wait}", seconds
    if before and run.at > before.at:
        sampled = run.counts["sampled_tokens"] - before.counts["sampled_tokens"]
        yield "tokens_per_s", sampled / (run.at - before.at)


def _row(trajectory: Trajectory, reward: float) -> dict[str, str | float]:
    job = trajectory.job
    conversations = trajectory.conversations if trajectory.of_agent else [trajectory.messages]
    texts = ["\n\n".join(map(_text, messages)) for messages in conversations]
    return {
        "job": job.id,
        "task": f"{job.env}/{job.split}/{job.task}",
        "reward": reward,
        "stop": str(trajectory.stop),
        "turns": trajectory.turns,
        "text": "\n\n----\n\n".join(texts),
    }


def _text(message: Message) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text", f"({part.get('type')})") for part in content)
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    lines = [content] if content else []
    lines += [f"{call['name']} {call['arguments']}" for call in calls]
    return f"{message['role']}: " + "\n".join(lines)
