"""The turns of a run, as the clock saw them, and the tokens a second that they come to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from rollq.events import Sampled
from rollq.trajectory import Trajectory


class Turn(NamedTuple):
    """One request to the engine."""

    at: float
    """Unix time in seconds when it was sent."""
    seconds: float
    """Seconds until its reply was there."""
    tokens: int
    """Sampled."""
    prompt: int
    """Tokens of the request."""
    cached: int
    """Tokens of the request that the engine had in its prefix cache."""

    @property
    def end(self) -> float:
        return self.at + self.seconds


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """All requests of an episode with one trace."""
    turns = []
    prompt = 0
    for event in trajectory.spans:
        if isinstance(event, Sampled):
            turns.append(Turn(event.at, event.seconds, len(event.ids), prompt, event.cached_tokens))
        prompt += len(event.ids)
    return turns


def rates(turns: Sequence[Turn]) -> dict[str, Any]:
    """Tokens a second of the whole run and, `steady`, of 20 to 70 % of its time, each turn's tokens
    spread evenly over its seconds.
    """
    begin = min(turn.at for turn in turns)
    end = max(turn.end for turn in turns)
    seconds = end - begin
    low, high = begin + 0.2 * seconds, begin + 0.7 * seconds
    middle = sum(turn.tokens * _share(turn, low, high) for turn in turns)
    took = sorted(turn.seconds for turn in turns)
    return {
        "turns": len(turns),
        "sampled_tokens": sum(turn.tokens for turn in turns),
        "seconds": round(seconds, 2),
        "tokens_s": round(sum(turn.tokens for turn in turns) / seconds, 1),
        "steady_tokens_s": round(middle / (high - low), 1),
        "turn_s_p50": round(took[len(took) // 2], 3),
        "turn_s_p99": round(took[int(0.99 * len(took))], 3),
        "in_flight_mean": round(sum(took) / seconds, 1),
        "cached_share": round(
            sum(turn.cached for turn in turns) / sum(turn.prompt for turn in turns), 4
        ),
    }


def _share(turn: Turn, low: float, high: float) -> float:
    """The part of the turn's time that lies between two moments."""
    return max(0.0, min(turn.end, high) - max(turn.at, low)) / max(turn.seconds, 1e-6)
