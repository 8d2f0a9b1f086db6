"""Short trajectories to export."""

from array import array

from rollq.job import Job
from rollq.trajectory import Closed, Finish, Header, Observed, Prompt, Sampled, Stop, Trajectory, VersionSpan


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
            Sampled(turn=0, ids=array("I", [4, 5]), logprobs=logprobs, versions=spans, finish=Finish.STOP),
            Observed(turn=0, message=message, actions=[], replies=[], ids=array("I", [6]), done=True),
            Closed(stop=stop, reward=reward),
        ],
    )
