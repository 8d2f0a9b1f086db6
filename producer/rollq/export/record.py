"""A trajectory as one plain JSON object: the line of an exported file."""

from typing import Any

from rollq.trajectory import Trajectory


def record(trajectory: Trajectory) -> dict[str, Any]:
    """The object on a line of an exported file.

    `tokens`, `mask`, `logprobs` and `versions` have equal length. The traces follow one another in them, and `traces`
    lists the length of each. Where the mask is 0, the logprob is 0.0 and the version null. Raises ContractError when a
    text in Redis cannot be read.
    """
    job = trajectory.job
    return {
        "job": job.id,
        "began": trajectory.header.at,
        "run": job.run,
        "group": job.group,
        "sample": job.sample,
        "env": job.env,
        "split": job.split,
        "task": job.task,
        "queue": job.queue,
        "labels": dict(job.labels),
        "sampling": dict(job.sampling),
        "attempt": trajectory.header.attempt,
        "stop": trajectory.stop.value if trajectory.stop else None,
        "failure": trajectory.failure.value if trajectory.failure else None,
        "reward": trajectory.reward,
        "tokens": trajectory.tokens.tolist(),
        "mask": list(trajectory.mask),
        "logprobs": trajectory.logprobs.tolist(),
        "versions": trajectory.versions,
        "turns": trajectory.turns,
        "messages": trajectory.messages,
        "info": dict(trajectory.info),
        "traces": trajectory.traces,
    }
