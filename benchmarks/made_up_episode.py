"""A trajectory of the shape that airline tasks of tau-bench have, made of random words: the same
each time.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import random
from array import array

from rollq.events import Closed, Event, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.job import Job
from rollq.trajectory import Header, Trajectory

RUN, GROUP = "retail-grpo", "tau2_2025-retail.train.17"
TURNS = 15
PROMPT, SAMPLED, BRIDGE = 4200, 62, 125
"""Number of tokens of the first prompt, and of each turn's sampled part and bridge."""


class RandomText:
    """Random words with the frequencies of a language."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwypvbgk"
        self.words = [
            "".join(self.random.choices(letters, k=self.random.randint(2, 9))) for _ in range(4000)
        ]
        self.weights = [1 / rank for rank in range(1, len(self.words) + 1)]
        self.vocabulary = self.random.sample(range(151_000), len(self.words))

    def text(self, length: int) -> str:
        return " ".join(self.random.choices(self.words, self.weights, k=length // 4))[:length]

    def ids(self, count: int) -> array[int]:
        return array("I", self.random.choices(self.vocabulary, self.weights, k=count))

    def result(self) -> str:
        fields = {f"{word}_id": f"#{self.random.randrange(10**8):08}" for word in self.words[:8]}
        return json.dumps({**fields, "note": self.text(300)})


def episode() -> Trajectory:
    """A trajectory of random words, the same each time."""
    writer = RandomText()
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "description": writer.text(850)}}
        for n in range(14)
    ]
    messages = [
        {"role": "system", "content": writer.text(6000)},
        {"role": "user", "content": writer.text(100)},
    ]
    events: list[Event] = [Prompt(ids=writer.ids(PROMPT), messages=messages, tools=tools, at=1.0)]
    for turn in range(TURNS):
        logprobs = array("f", [-writer.random.expovariate(3) for _ in range(SAMPLED)])
        span = VersionSpan("12", 0, SAMPLED)
        said = writer.text(300)
        arguments = {"id": f"#{turn:08}", "reason": writer.text(60)}
        events += [
            Sampled(
                turn=turn,
                ids=writer.ids(SAMPLED),
                logprobs=logprobs,
                versions=[span],
                finish=Finish.STOP,
                text=said,
                at=1.0,
            ),
            Observed(
                turn=turn,
                message={"role": "assistant", "content": said},
                actions=[{"name": "tool_3", "arguments": arguments}],
                replies=[
                    {"role": "tool", "tool_call_id": f"call_{turn}", "content": writer.result()}
                ],
                ids=writer.ids(BRIDGE),
                at=1.0,
            ),
        ]
    events.append(Closed(stop=Stop.DONE, reward=1.0, info={"reward": 1.0}, at=2.0))
    job = Job(run=RUN, group=GROUP, env="tau2_2025:retail", task=17, size=8)
    return Trajectory(
        job=job, header=Header(attempt=1, worker="rollq@host-1", at=1.0), events=events
    )
