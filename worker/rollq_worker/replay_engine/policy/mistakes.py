"""Mistakes of an imperfect policy, said in place of the next move.

The invariant: for one task and move, a mistake of one kind is always the same text. So any server
can finish a turn that was interrupted in the middle of a mistake. Half of the mistakes cost the
reward.
"""

import json
import math
import random
from enum import StrEnum

from rollq.env import RESPOND, Action, Task
from rollq.job import Json


class Mistake(StrEnum):
    MALFORMED = "malformed"
    """A tool call that breaks off in the middle of its JSON."""
    UNKNOWN = "unknown"
    """A tool that does not exist."""
    CHAT = "chat"
    """A text where a tool call was due."""
    ARGUMENT = "argument"
    """A tool call with one wrong argument; in the last call it costs the reward."""
    SKIP = "skip"
    """The last call is left out."""
    FINISH = "finish"
    """The last message comes while calls are still to be made."""


def chance_per_turn(rate: float, task: Task) -> float:
    """The chance of a mistake in each turn, so that an episode has at least one with
    chance `rate`.
    """
    places = last_call(task) + 1
    if places:
        return 1.0 - math.pow(1.0 - rate, 1.0 / places)
    return 0.0


def last_call(task: Task) -> int:
    """The index of the last move that is a tool call, after which nothing can go wrong; -1 without
    tool calls.
    """
    calls = [index for index, move in enumerate(task.moves) if move.name != RESPOND]
    return calls[-1] if calls else -1


def draw_mistake(rng: random.Random, task: Task, made: int) -> Action | str | None:
    """The move with a random mistake; None when no mistake is possible.

    Where both are possible, a mistake that costs the reward is as likely as one that does not.
    """
    fatal: list[Action | str] = []
    other: list[Action | str] = []
    for kind in Mistake:
        move = spoiled_move(kind, task, made)
        if move is None:
            continue
        spoils_last_call = kind is Mistake.ARGUMENT and made == last_call(task)
        if kind in (Mistake.SKIP, Mistake.FINISH) or spoils_last_call:
            fatal.append(move)
        else:
            other.append(move)
    choices = [kinds for kinds in (fatal, other) if kinds]
    if choices:
        return rng.choice(rng.choice(choices))
    return None


def spoiled_move(kind: Mistake, task: Task, made: int) -> Action | str | None:
    """The move number `made` with that mistake: an action, or a text to sample as it is. None when
    the mistake is impossible.
    """
    last = last_call(task)
    if made > last:
        return None
    if kind is Mistake.FINISH:
        return task.moves[-1] if task.moves[-1].name == RESPOND else None
    if kind is Mistake.SKIP:
        skips_to_end = made == last and made + 1 < len(task.moves)
        return task.moves[made + 1] if skips_to_end else None
    return _spoiled_call(kind, task.moves[made])


def _spoiled_call(kind: Mistake, move: Action) -> Action | str | None:
    if move.name == RESPOND:
        return None
    if kind is Mistake.CHAT:
        return Action(RESPOND, {"content": "One moment, please, I am looking into that for you."})
    if kind is Mistake.UNKNOWN:
        return Action(f"{move.name}_now", move.arguments)
    if kind is Mistake.ARGUMENT:
        return _wrong_argument(move)
    call = {"name": move.name, "arguments": dict(move.arguments)}
    text = json.dumps(call, ensure_ascii=False)
    length = max(len(text) - 4, len(text) // 2)
    return f"<tool_call>\n{text[:length]}\n</tool_call>"


def _wrong_argument(move: Action) -> Action | None:
    for name, value in sorted(move.arguments.items(), reverse=True):
        wrong = _wrong(value)
        if wrong is not None:
            return Action(move.name, {**move.arguments, name: wrong})
    return None


def _wrong(value: Json) -> Json:
    """A wrong value of the same type; None for an empty value or one of an unknown type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value:
        last = "3" if value[-1] == "7" else "7"
        return value[:-1] + last
    if isinstance(value, list) and value:
        return value[:-1]
    return None
