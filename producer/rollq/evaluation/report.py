"""The result of an evaluation as text and as JSON."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rollq.evaluation.comparison import Change, Comparison
from rollq.evaluation.result import Result, TaskResult, Try
from rollq.evaluation.statistics import Estimate

SHOWN_ROWS = 20
"""Tasks in the table, and failing tries in the list. JSON has all of them."""


def as_json(result: Result) -> dict[str, Any]:
    """Every number of the result (docs/evaluate.md has the fields)."""
    return {
        **summary_json(result),
        "per_task": [_task(result, task) for task in result.worst_first],
        "failures": [failure._asdict() for failure in result.failures],
    }


def summary_json(result: Result) -> dict[str, Any]:
    """The result as a whole."""
    reward = result.reward
    pass_hat_k = result.pass_hat_k
    return {
        "run": result.run,
        "name": result.name,
        "version": result.version,
        "tasks": len(result.tasks) + len(result.left_out),
        "size": result.size,
        "submitted": (len(result.tasks) + len(result.left_out)) * result.size,
        "done": len(result.tries),
        "dead": result.dead,
        "left_out": list(result.left_out),
        "reward_mean": reward and reward.mean,
        "reward_stderr": reward and reward.stderr,
        "reward_interval": reward and _interval(reward),
        "pass_hat_k": {str(k): value.mean for k, value in pass_hat_k.items()},
        "pass_hat_k_stderr": {str(k): value.stderr for k, value in pass_hat_k.items()},
        "pass_hat_k_interval": {str(k): _interval(value) for k, value in pass_hat_k.items()},
        "turns_mean": _mean(episode.turns for episode in result.tries),
        "sampled_tokens": sum(episode.sampled_tokens for episode in result.tries),
        "total_tokens": sum(episode.total_tokens for episode in result.tries),
        "stops": dict(Counter(episode.stop for episode in result.tries)),
        "versions": sorted(result.versions),
        "version_tokens": result.versions,
        "other_versions": result.other_versions,
    }


def _task(result: Result, task: TaskResult) -> dict[str, Any]:
    return {
        "env": task.env,
        "split": task.split,
        "task": task.task,
        "group": task.group,
        "reward_mean": task.reward,
        "successes": task.successes,
        "rewards": [episode.reward for episode in task.tries],
        "stops": [episode.stop for episode in task.tries],
        "turns": [episode.turns for episode in task.tries],
        "sampled_tokens": [episode.sampled_tokens for episode in task.tries],
        "total_tokens": [episode.total_tokens for episode in task.tries],
        "versions": dict(task.versions),
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "before": comparison.before,
        "reward": estimate_json(comparison.reward),
        "pass_hat_k": {str(k): estimate_json(value) for k, value in comparison.pass_hat_k.items()},
        "better": [change._asdict() for change in comparison.better],
        "worse": [change._asdict() for change in comparison.worse],
    }


def summary_lines(result: Result) -> list[str]:
    """The result as a whole, one subject per line."""
    tasks = len(result.tasks) + len(result.left_out)
    submitted = tasks * result.size
    kinds = dict.fromkeys(f"{task.env}/{task.split}" for task in result.tasks)
    pass_hat = [f"pass^{k} {mean_in_interval(value)}" for k, value in result.pass_hat_k.items()]
    reward = f"mean {mean_with_error(result.reward)} (over tasks)" if result.reward else "-"
    rows = {
        "eval": f"{title(result)}: {', '.join(kinds) or '-'}, {tasks} tasks, {result.size} tries "
        "each",
        "reward": reward,
        "pass^k": "  ".join(pass_hat) or "-",
        "jobs": f"{submitted} submitted: {len(result.tries)} graded here, {result.dead} dead",
        "stops": _stops(result.tries) or "-",
        "tokens": _tokens(result.tries),
        "weights": _weights(result),
    }
    return [f"{subject:<8} {line}" for subject, line in rows.items()]


def _tokens(tries: Sequence[Try]) -> str:
    sampled = sum(episode.sampled_tokens for episode in tries)
    total = sum(episode.total_tokens for episode in tries)
    turns = _mean(episode.turns for episode in tries)
    turns_text = "-" if turns is None else f"{turns:.1f}"
    return f"{sampled} sampled of {total}, {turns_text} turns an episode"


def _stops(tries: Sequence[Try]) -> str:
    counts = Counter(episode.stop for episode in tries)
    return ", ".join(f"{stop} {count}" for stop, count in sorted(counts.items()))


def _weights(result: Result) -> str:
    if not result.other_versions:
        return ", ".join(result.versions) or "-"
    tokens = ", ".join(f"{count} tokens of {name}" for name, count in result.versions.items())
    return f"mixed: {tokens}; it is meant to be an evaluation of {result.version}"


def comparison_lines(comparison: Comparison) -> list[str]:
    pass_hat = [
        f"pass^{k} {mean_in_interval(value, '+')}" for k, value in comparison.pass_hat_k.items()
    ]
    reward = mean_with_error(comparison.reward, "+")
    lines = [
        f"compare  with {comparison.before}: reward {reward} (paired by task)",
        f"         {'  '.join(pass_hat)}",
        f"         {len(comparison.better)} tasks better, {len(comparison.worse)} worse",
    ]
    return [*lines, *_changes("better", comparison.better), *_changes("worse", comparison.worse)]


def _changes(word: str, changes: Sequence[Change]) -> Iterable[str]:
    for change in changes[:SHOWN_ROWS]:
        yield f"{word:<8} {change.task}  {change.before:.3f} -> {change.after:.3f}"
    if len(changes) > SHOWN_ROWS:
        yield f"         and {len(changes) - SHOWN_ROWS} more"


def task_table(result: Result) -> list[str]:
    """A line for each task, the worst first."""
    if not result.tasks:
        return []
    shown = result.worst_first[:SHOWN_ROWS]
    width = max(4, *(len(task.title) for task in shown))
    lines = [f"{'task':<{width}}  reward  successes  turns  tokens  stops"]
    for task in shown:
        successes = f"{task.successes} of {len(task.tries)}"
        turns = fmean(episode.turns for episode in task.tries)
        tokens = fmean(episode.sampled_tokens for episode in task.tries)
        cells = f"{task.reward:>6.3f}  {successes:>9}  {turns:>5.1f}  {tokens:>6.0f}"
        lines.append(f"{task.title:<{width}}  {cells}  {_stops(task.tries)}")
    if more := len(result.tasks) - len(shown):
        lines.append(f"and {more} more, which are no worse")
    return lines


def failure_lines(result: Result, command: Callable[[str], str]) -> list[str]:
    """The tries that failed, the worst first, each with the command that shows it."""
    failures = result.failures
    lines = [
        f"{command(failure.job)}  # reward {failure.reward:g}, {failure.stop}"
        for failure in failures[:SHOWN_ROWS]
    ]
    if not lines:
        return []
    more = f"; the worst {SHOWN_ROWS}" if len(failures) > SHOWN_ROWS else ""
    return [f"{len(failures)} of {len(result.tries)} tries failed{more}:", *lines]


def title(result: Result) -> str:
    return f"{result.run}@{result.name}" if result.name else result.run


def mean_with_error(value: Estimate, sign: str = "") -> str:
    """The mean with its error."""
    if value.low is None or value.high is None or value.stderr is None:
        return f"{value.mean:{sign}.3f}"
    return (
        f"{value.mean:{sign}.3f}, 95 % interval {value.low:{sign}.3f} to {value.high:{sign}.3f},"
        f" standard error {value.stderr:.3f}"
    )


def mean_in_interval(value: Estimate, sign: str = "") -> str:
    """The mean with its interval."""
    if value.low is None or value.high is None:
        return f"{value.mean:{sign}.3f}"
    return f"{value.mean:{sign}.3f} ({value.low:{sign}.3f} to {value.high:{sign}.3f})"


def _interval(value: Estimate) -> list[float] | None:
    return None if value.low is None or value.high is None else [value.low, value.high]


def estimate_json(value: Estimate) -> Mapping[str, Any]:
    return {"mean": value.mean, "stderr": value.stderr, "interval": _interval(value)}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None
