"""A rollout as a row of a table, and what the tables and counts of a run are made of.

Pure: it does not know where rows come from, and it never needs an episode's tokens or messages.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any

from rollq.evaluation.statistics import SUCCESS
from rollq.events import GRADED

LONGEST_WHY = 200
"""Number of characters of a row's `why`."""
BARS = 10
"""Number of bars of the histogram of rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rollout, finished or not."""

    key: str
    """Name within the run or file: the job's id, with `#2` behind it for the second line of the
    same job.
    """
    job: str
    run: str
    group: str
    sample: int = 0
    env: str = ""
    split: str = ""
    task: int = 0
    state: str
    """queued, leased, done, dead or surplus; `acked` once its group was acknowledged."""
    stop: str = ""
    failure: str = ""
    reward: float | None = None
    turns: int | None = 0
    """Finished turns. None where they are not known any more."""
    sampled: int | None = None
    """Sampled tokens. None where only the episode itself says."""
    attempt: int = 0
    began: float = 0.0
    """Unix time at which its attempt began. 0 if it is not known."""
    why: str = ""
    """The grader's facts, or the failure's reason, in short."""

    @property
    def outcome(self) -> str:
        """Why it ended, or where it is."""
        return self.stop or self.state

    @property
    def has_known_end(self) -> bool:
        """True if its end was seen. It was not, if its group was acknowledged before."""
        return bool(self.stop) or self.state in ("dead", "surplus")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A choice of rows, and their order. Empty values choose all."""

    sort: str = ""
    descending: bool = False
    outcome: str = ""
    state: str = ""
    failure: str = ""
    env: str = ""
    group: str = ""
    reward: str = ""
    """`solved`, `failed` (a lower reward) or `none`."""
    text: str = ""
    """Occurs in the job's id, the environment, the task or in `why`."""
    offset: int = 0
    limit: int = 100


SORTS = (
    "reward",
    "group",
    "env",
    "task",
    "outcome",
    "failure",
    "turns",
    "sampled",
    "attempt",
    "began",
    "why",
)


def select(rows: Iterable[Row], query: Query) -> list[Row]:
    """All rows that the query chooses, in its order. Rows without a value come last in either
    order.
    """
    chosen = [row for row in rows if _fits(row, query)]
    if query.sort not in SORTS:
        return chosen
    with_value = [row for row in chosen if _has_value(getattr(row, query.sort))]
    without = [row for row in chosen if not _has_value(getattr(row, query.sort))]
    with_value.sort(key=lambda row: _sort_key(row, query.sort), reverse=query.descending)
    return with_value + without


def _sort_key(row: Row, name: str) -> Any:
    return (row.env, row.split, row.task) if name == "task" else getattr(row, name)


def _has_value(value: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    return value not in (None, "")


def _fits(row: Row, query: Query) -> bool:
    pairs = [
        (query.outcome, row.outcome),
        (query.state, row.state),
        (query.failure, row.failure),
        (query.env, row.env),
        (query.group, row.group),
        (query.reward, verdict(row.reward)),
    ]
    if any(wanted not in ("", value) for wanted, value in pairs):
        return False
    text = f"{row.job} {row.env} {row.split} {row.task} {row.why}"
    return query.text.lower() in text.lower()


def verdict(reward: float | None) -> str:
    """`solved`, `failed` or `none`."""
    if reward is None or math.isnan(reward):
        return "none"
    return "solved" if reward >= SUCCESS else "failed"


def summary(rows: Iterable[Row]) -> dict[str, Any]:
    """The counts that a run's page begins with."""
    rows = list(rows)
    graded = [row for row in rows if row.stop in GRADED]
    rewards = finite_rewards(rows)
    return {
        "rollouts": len(rows),
        "groups": len({row.group for row in rows}),
        "states": Counter(row.state for row in rows),
        "outcomes": Counter(row.outcome for row in rows),
        "failures": Counter(row.failure for row in rows if row.failure),
        "envs": Counter(row.env for row in rows),
        "verdicts": Counter(verdict(row.reward) for row in graded),
        "graded": len(graded),
        "reward_mean": mean(rewards) if rewards else None,
        "histogram": histogram(rewards),
    }


def finite_rewards(rows: Iterable[Row]) -> list[float]:
    """The rewards of the rows that have one that is a number."""
    rewards = (row.reward for row in rows if row.reward is not None)
    return [reward for reward in rewards if math.isfinite(reward)]


def histogram(rewards: Sequence[float]) -> dict[str, Any]:
    """Rewards in each of BARS equal parts of their range, which is at least from 0 to 1."""
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    counts = [0] * BARS
    for reward in rewards:
        # halves, because the range of two floats may be none
        place = (reward / 2 - low / 2) / (high / 2 - low / 2)
        counts[min(BARS - 1, int(place * BARS))] += 1
    return {"low": low, "high": high, "counts": counts}


def groups(rows: Iterable[Row], states: Mapping[str, str]) -> list[dict[str, Any]]:
    """The groups of these rows in their order, with a few facts of each member. `states`: of
    groups, where known. Mean and spread are None until the ends of all members are known.
    """
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(row.group, []).append(row)
    return [
        _group(name, sorted(own, key=lambda row: row.sample), states)
        for name, own in members.items()
    ]


def _group(name: str, members: Sequence[Row], states: Mapping[str, str]) -> dict[str, Any]:
    ended = [row for row in members if row.has_known_end]
    rewards = finite_rewards(ended) if len(ended) == len(members) else []
    first = members[0]
    return {
        "group": name,
        "state": states.get(name, ""),
        "env": first.env,
        "split": first.split,
        "task": first.task,
        "ended": len(ended),
        "mean": mean(rewards) if rewards else None,
        "spread": pstdev(rewards) if rewards else None,
        "members": [
            {"sample": row.sample, "reward": row.reward, "outcome": row.outcome} for row in members
        ],
    }


def why(info: Mapping[str, Any], failure: str = "") -> str:
    """The grader's or the failure's words in one short line: facts that are false or not empty."""
    reason = last_line(str(info.get("reason") or ""))
    if reason:
        return short(f"{failure}: {reason}" if failure else reason)
    facts = [_fact(name, value) for name, value in info.items()]
    return short(" · ".join(filter(None, facts)))


def _fact(name: str, value: Any) -> str:
    if value is False:
        return f"{name} no"
    if isinstance(value, list) and value:
        return f"{name} {', '.join(map(str, value[:3]))}"
    return f"{name} {value}" if isinstance(value, str) and value else ""


def last_line(reason: str) -> str:
    """The first line of a reason, or the last one of a traceback, which is the exception."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def short(text: str) -> str:
    text = " ".join(text[: 4 * LONGEST_WHY].split())
    return text if len(text) <= LONGEST_WHY else text[: LONGEST_WHY - 1] + "…"
