"""Short trajectories to export."""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from rollq.events import Closed, Observed, Stop
from rollq.trajectory import Header, Trajectory
from tests.rollq.samples import job, observed, prompt, sampled
from tests.rollq.token_rows import Trace, episode


def played(task: int, sample: int, reward: float | None, stop: Stop = Stop.DONE) -> Trajectory:
    """One turn: 3 tokens of prompt, 2 sampled, 1 observed."""
    message = {"role": "assistant", "content": "hi"}
    events = [
        replace(prompt(), messages=[], tools=[]),
        replace(sampled(0, 4, 5), logprobs=array("f", [-1.0, -0.5]), text=""),
        replace(observed(0, 6, done=True), message=message, actions=[], replies=[]),
        Closed(stop=stop, reward=reward),
    ]
    of = job(sample, f"g{task}", task=task, size=8)
    return Trajectory(job=of, header=Header(attempt=1), events=events)


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
