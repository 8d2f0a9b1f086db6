"""An environment for load tests of an engine: a policy and tools of about 1,640 tokens, and replies
of fixed lengths.

An episode takes as many turns as its budget allows, whatever the model says, and earns 0. So any
model plays it, one with random weights, too. A task is the same in every process.
"""

import random

from rollq.env import RESPOND, Action, Grade, Observation, Task
from rollq.errors import JobFailure

TASKS = 100_000
WORDS = (
    "order parcel kettle lamp refund return exchange address invoice voucher courier depot window "
    "Tuesday morning the a my your please could would check whether status again number still "
    "nothing arrived box broken label colour green"
).split()
CALLS = {
    "get_order": ("order_id",),
    "get_user": ("user_id",),
    "cancel_order": ("order_id", "reason"),
    "change_address": ("order_id", "street", "city"),
    "exchange_item": ("order_id", "old", "new"),
    "return_item": ("order_id", "item"),
    "calculate": ("expression",),
    "transfer": ("summary",),
}


def words(seed, count):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def tool(name, arguments):
    properties = {
        one: {"type": "string", "description": words(name + one, 12)} for one in arguments
    }
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": words(name, 30), "parameters": parameters},
    }


class Episode:
    tools = tuple(tool(name, arguments) for name, arguments in CALLS.items())
    system_prompt = "# Policy\n" + "\n".join(
        f"{rule}. {words(f'rule {rule}', 45)}." for rule in range(12)
    )

    def __init__(self, index):
        self.index = index
        self.steps = 0

    def reset(self, user):
        return user.open()

    def step(self, action):
        self.steps += 1
        return Observation(
            words(f"{self.index} {self.steps}", 60 + (self.index * 7 + self.steps * 13) % 60)
        )

    def grade(self):
        return Grade(0.0)


class Load:
    name, version = "load", "load 1"

    def splits(self):
        return {"train": TASKS}

    def task(self, split, index):
        if split != "train" or index not in range(TASKS):
            raise JobFailure(
                f"load has tasks 0 to {TASKS - 1} of split 'train', not {index} of {split!r}"
            )
        opening = f"Case {index}: {words(f'opening {index}', 80)}."
        return Task(
            id=f"load/{index}",
            hash=f"load-1-{index}",
            instruction=opening,
            opening=opening,
            replies=("Go on.",),
            moves=(Action(RESPOND, {"content": "It is done."}),),
        )

    def open(self, split, index, args):
        if args:
            raise JobFailure("load takes no env_args")
        return Episode(index)


def load(variant):
    return Load()
