"""The task that all peers play: seven tool calls and a message, about 1,650 tokens of policy and
tools, and an environment that costs nothing.

Policy, tools and words are those of gpu/load.py. It needs nothing that a peer's Python has not,
and as an environment of rollq it is `peers/task.py:load`.
"""

from functools import cache

from gpu import load as words_of

from rollq.env import RESPOND, Action, Grade, Observation, Task
from rollq.errors import JobFailure

TASKS = 64
TURNS = 8
POLICY = words_of.Episode.system_prompt
TOOLS = words_of.Episode.tools
LAST = "It is done."


def call(turn):
    """Name and arguments of the call of that turn, from 0 on."""
    name, arguments = list(words_of.CALLS.items())[turn]
    return name, {one: words_of.words(f"argument {turn} {one}", 5) for one in arguments}


def opening(index):
    return f"Case {index}: {words_of.words(f'opening {index}', 80)}."


@cache  # so that no peer pays for making words
def observation(index, step):
    return words_of.words(f"{index} {step}", 60 + (index * 7 + step * 13) % 60)


class Episode:
    tools = TOOLS
    system_prompt = POLICY

    def __init__(self, index):
        self.index = index
        self.calls = 0
        self.told = False

    def reset(self, user):
        return user.open()

    def step(self, action):
        if action.name == RESPOND:
            self.told = True
            return Observation("", done=True)
        self.calls += 1
        return Observation(observation(self.index, self.calls))

    def grade(self):
        return Grade(float(self.told and self.calls == TURNS - 1))


class Peers:
    name, version = "peers", "peers 1"

    def splits(self):
        return {"train": TASKS}

    def task(self, split, index):
        if split != "train" or index not in range(TASKS):
            raise JobFailure(f"peers has tasks 0 to {TASKS - 1} of split 'train'")
        calls = [Action(*call(turn)) for turn in range(TURNS - 1)]
        first = opening(index)
        return Task(
            id=f"peers/{index}",
            hash=f"peers-1-{index}",
            instruction=first,
            opening=first,
            replies=("Go on.",),
            moves=(*calls, Action(RESPOND, {"content": LAST})),
        )

    def open(self, split, index, args):
        return Episode(index)


def load(variant):
    return Peers()
