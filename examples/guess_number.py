"""An environment of your own: the agent finds a number by asking higher or lower
(docs/environments.md).
"""

import re

from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Observation, Task
from rollq.errors import JobFailure

NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOL = {
    "name": "guess",
    "description": "Is the number I think of higher or lower?",
    "parameters": NUMBER,
}


class Game:
    tools = ({"type": "function", "function": TOOL},)
    system_prompt = "Find the number from 1 to 100 with the tool, then tell it to the user."

    def __init__(self, task):
        self.secret, self.told = task.outputs[0], []

    def reset(self, user):
        self.user = user
        return user.open()

    def step(self, action):
        if action.name == RESPOND:
            self.told += re.findall(r"\d+", action.arguments["content"])
            reply = self.user.reply(action.arguments["content"])
            return Observation(reply, done=STOP_MARKER in reply)
        number = action.arguments.get("number")
        if action.name != "guess" or type(number) is not int:
            return Observation("Error: call guess with a whole number")
        return Observation(
            "right"
            if number == int(self.secret)
            else "higher"
            if number < int(self.secret)
            else "lower"
        )

    def grade(self):
        return Grade(float(self.told == [self.secret]))


class Guess:
    name, version = "guess", "guess 1"

    def splits(self):
        return {"train": 100}

    def task(self, split, index):
        if split != "train" or index not in range(100):
            raise JobFailure(f"guess has tasks 0 to 99 of split 'train', not {index} of {split!r}")
        secret = str(index * 37 % 100 + 1)
        return Task(
            id=f"guess/{index}",
            hash=f"guess-1-{secret}",
            instruction="You think of a number from 1 to 100 and want the agent to find it.",
            opening=f"Round {index}: I think of a number. Which one is it?",
            replies=(f"Thank you. {STOP_MARKER}",),
            moves=(
                Action("guess", {"number": int(secret)}),
                Action(RESPOND, {"content": f"It is {secret}."}),
            ),
            outputs=(secret,),
        )

    def open(self, split, index, args):
        if args:
            raise JobFailure("guess takes no env_args")
        return Game(self.task(split, index))


def load(variant):
    return Guess()


if (
    __name__ == "__main__"
):  # played by its own moves, as `rollq env check` does with any environment
    import sys

    from rollq.cli import main

    sys.exit(main(["env", "check", __file__]))
