"""The tokens of recorded episodes, from a file that `rollq pull --out` wrote.

A line's mask is 1 where the policy sampled: the runs of 0 and 1 are its prompt, its turns and what answered them. How
long environment and engine took is not in the file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rollq.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Episode:
    """The tokens of one episode."""

    prompt: int
    turns: tuple[tuple[int, int], ...]
    """Sampled and observed tokens of each turn."""

    @property
    def tokens(self) -> int:
        return self.prompt + sum(map(sum, self.turns))


def read_trace(path: Path) -> tuple[Episode, ...]:
    """Raises SettingsError."""
    found = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    mask = json.loads(line)["mask"]
                    found.append(episode(mask))
                except (ValueError, TypeError, KeyError, IndexError) as e:
                    raise SettingsError(
                        f"{path} line {number} is no trajectory with sampled tokens: a trace is a file that rollq pull"
                        " --out wrote, as JSON Lines"
                    ) from e
    except OSError as e:
        raise SettingsError(f"{path} cannot be read: {e.strerror}") from e
    if not found:
        raise SettingsError(f"{path} holds no trajectory")
    return tuple(found)


def episode(mask: Sequence[int]) -> Episode:
    """The episode of a mask. Raises IndexError when nothing was sampled."""
    runs = [(sampled, sum(1 for _ in run)) for sampled, run in groupby(mask)]
    prompt = 0 if runs[0][0] else runs.pop(0)[1]
    pairs = [(runs[i][1], runs[i + 1][1] if i + 1 < len(runs) else 0) for i in range(0, len(runs), 2)]
    return Episode(prompt, (pairs[0], *pairs[1:]))
