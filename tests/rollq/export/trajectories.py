"""Short trajectories to export."""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from rollq.events import Closed, Finish, Observed, Prompt, Sampled, Stop, VersionSpan
from rollq.job import Job
from rollq.trajectory import Header, Trajectory
from tests.rollq.token_rows import Trace, episode


def played(task: int, sample: int, reward: float | None, stop: Stop = Stop.DONE) -> Trajectory:
    """One turn: 3 tokens of prompt, 2 sampled, 1 observed."""
    spans = [VersionSpan("1", 0, 2)]
    logprobs = array("f", [-1.0, -0.5])
    message = {"role": "assistant", "content": "hi"}
    return Trajectory(
        job=Job(run="r", group=f"g{task}", sample=sample, env="shop", task=task, size=8),
        header=Header(attempt=1),
        events=[
            Prompt(ids=array("I", [1, 2, 3]), messages=[], tools=[]),
            Sampled(
                turn=0,
                ids=array("I", [4, 5]),
                logprobs=logprobs,
                versions=spans,
                finish=Finish.STOP,
            ),
            Observed(
                turn=0, message=message, actions=[], replies=[], ids=array("I", [6]), done=True
            ),
            Closed(stop=stop, reward=reward),
        ],
    )


sound_turns = st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=2), st.integers(1, 3))
sound_traces = st.lists(
    st.tuples(st.integers(1, 4), st.lists(sound_turns, min_size=1, max_size=3)),
    min_size=1,
    max_size=3,
)


def sound(shape: Sequence[Trace], sample: int = 0) -> Trajectory:
    """Of that shape, with a message for each turn, as a worker writes them."""
    made = episode(shape, itertools.count(), sample)
    message = {"role": "assistant", "content": "hi"}
    events = [
        replace(event, message=message) if isinstance(event, Observed) else event
        for event in made.events
    ]
    return replace(made, events=events)
