"""What a policy that is not perfect says instead of the next move.

The invariant: for one task and place, a mistake of one kind is always the same text, so that a turn which was
interrupted in the middle of a mistake can be finished by whoever sees it next.
"""

import json
import math
import random
from enum import StrEnum

from rollq.job import Json
from rollq_worker.protocols import RESPOND, Action, Task


class Mistake(StrEnum):
    """The kinds; the policy can recover from the first three."""

    MALFORMED = "malformed"
    """A tool call that breaks off in the middle of its JSON."""
    UNKNOWN = "unknown"
    """A tool that does not exist."""
    CHAT = "chat"
    """Talk where a tool call was due."""
    ARGUMENT = "argument"
    """A tool call with one wrong argument."""
    SKIP = "skip"
    """The move after the due one."""
    FINISH = "finish"
    """The last thing it would say, with moves still to be made."""


CHATTER = "One moment, please, I am looking into that for you."


def rate_per_turn(rate: float, moves: int) -> float:
    """The chance of a mistake in each of `moves` turns that makes an episode contain one with chance `rate`."""
    return 1.0 - math.pow(1.0 - rate, 1.0 / max(1, moves))


def draw(rng: random.Random, task: Task, made: int) -> Mistake | None:
    """Some kind of mistake that changes what is said at this place; None if there is none."""
    kinds = list(Mistake)
    rng.shuffle(kinds)
    return next((kind for kind in kinds if spoilt(kind, task, made) is not None), None)


def spoilt(kind: Mistake, task: Task, made: int) -> Action | str | None:
    """The move at `made` with that mistake: an action, or a text to be sampled as it is. None: impossible here."""
    move, rest = task.moves[made], task.moves[made + 1 :]
    if kind is Mistake.SKIP:
        return rest[0] if rest else None
    if kind is Mistake.FINISH:
        return rest[-1] if len(rest) > 1 else None
    if move.name == RESPOND:
        return None
    if kind is Mistake.CHAT:
        return Action(RESPOND, {"content": CHATTER})
    if kind is Mistake.UNKNOWN:
        return Action(f"{move.name}_now", move.arguments)
    if kind is Mistake.MALFORMED:
        whole = json.dumps({"name": move.name, "arguments": dict(move.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{whole[: max(len(whole) - 4, len(whole) // 2)]}\n</tool_call>"
    return _wrong_argument(move)


def _wrong_argument(move: Action) -> Action | None:
    for name, value in sorted(move.arguments.items(), reverse=True):
        if (wrong := _wrong(value)) is not None:
            return Action(move.name, {**move.arguments, name: wrong})
    return None


def _wrong(value: Json) -> Json:
    """Another value of the same type, None if there is none that is surely wrong."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and value:
        return value[:-1] + ("7" if value[-1] != "7" else "3")
    if isinstance(value, list) and value:
        return value[:-1]
    return None
