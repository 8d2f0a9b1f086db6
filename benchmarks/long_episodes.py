"""An environment whose episodes have as many turns as asked: every turn looks up another record.

`long_episodes:200x20` has 200 turns, the last of which is said to the user, and records of 20
fields. `install` makes it known to this process and to those that it starts.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from rollq.env import RESPOND, STOP_MARKER, Action, Environment, Grade, Observation, Task, User
from rollq.errors import JobFailure
from rollq.job import Json

NAME = "long_episodes"
TURNS, FIELDS = 70, 8
"""Turns of an episode and fields of a record, where the name says none."""
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "The record of that number.",
        "parameters": SCHEMA,
    },
}


class LongEpisode:
    """Implements rollq.env.Environment. Each record is another text, of 45 characters a field."""

    tools = (TOOL,)
    system_prompt = "Look up one record after the other, then tell the user that you are done."

    def __init__(self, turns: int, fields: int) -> None:
        self._turns, self._fields = turns, fields
        self._user: User | None = None
        self._looked = 0

    def reset(self, user: User) -> str:
        self._user = user
        return user.open()

    def step(self, action: Action) -> Observation:
        if action.name == RESPOND and self._user:
            reply = self._user.reply(str(action.arguments["content"]))
            return Observation(reply, done=STOP_MARKER in reply)
        self._looked += 1
        number = action.arguments["number"]
        fields = {
            f"field {n}": f"value {number * 7919 + n * 104729} of record {number}"
            for n in range(self._fields)
        }
        return Observation(json.dumps({"record": number, **fields}))

    def grade(self) -> Grade:
        return Grade(float(self._looked == self._turns - 1))


class LongEpisodes:
    """Implements rollq.env.Domain."""

    version = f"{NAME} 1"

    def __init__(self, variant: str | None) -> None:
        self.name = f"{NAME}:{variant}" if variant else NAME
        self._turns, self._fields = map(int, variant.split("x")) if variant else (TURNS, FIELDS)

    def splits(self) -> Mapping[str, int]:
        return {"train": 100}

    def task(self, split: str, index: int) -> Task:
        if split != "train" or not 0 <= index < 100:
            raise JobFailure(f"{NAME} has tasks 0 to 99 of split 'train', not {index} of {split!r}")
        looks = [
            Action("look_up", {"number": index * 1000 + turn}) for turn in range(self._turns - 1)
        ]
        return Task(
            id=f"{NAME}/{index}",
            hash=f"{NAME}-1-{index}",
            instruction="",
            opening=f"Please look up the records of list {index}.",
            replies=(f"Thank you. {STOP_MARKER}",),
            moves=(*looks, Action(RESPOND, {"content": f"I have looked up list {index}."})),
        )

    def open(self, split: str, index: int, args: Mapping[str, Json]) -> Environment:
        self.task(split, index)
        return LongEpisode(self._turns, self._fields)


def load(variant: str | None) -> LongEpisodes:
    return LongEpisodes(variant)


def install(folder: Path) -> None:
    """Writes into `folder` what an installed package would have, and puts it on the path."""
    info = folder / f"{NAME}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[rollq.environments]\n{NAME} = {NAME}:load\n")
    sys.path.insert(0, str(folder))
