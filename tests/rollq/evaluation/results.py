"""Results of evaluations, made up."""

from collections.abc import Mapping, Sequence

from rollq.evaluation.result import Result, TaskResult, Try


def task_of(
    task: int, rewards: Sequence[float], versions: Mapping[str, int] | None = None
) -> TaskResult:
    """A task with these rewards, by sample."""
    tries = [Try(reward, "done" if reward else "turns", 3, 20, 100) for reward in rewards]
    group = f"shop.test.{task}"
    return TaskResult(
        group=group,
        env="shop",
        split="test",
        task=task,
        tries=tries,
        versions=versions or {"1": 40},
    )


def result_of(rewards: Mapping[int, Sequence[float]], run: str = "e", **changes: object) -> Result:
    """By task: the rewards of its tries."""
    size = max((len(tries) for tries in rewards.values()), default=1)
    tasks = [task_of(task, tries) for task, tries in rewards.items()]
    known = {"run": run, "name": "", "version": None, "size": size, "tasks": tasks, "left_out": []}
    return Result(**{**known, **changes})
