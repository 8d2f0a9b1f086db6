"""Checks of jobs before they are submitted, where the worker's package is installed: a light client
leaves them to the workers.
"""

import logging
from math import inf

from rollq.errors import ContractError, JobFailure
from rollq.job import Job
from rollq.worker_package import for_clients

log = logging.getLogger("rollq")


class JobChecks:
    """Each kind of job is checked once, and the number of its task each time."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, ...], float] = {}
        """Tasks that there are for each kind of job; infinity where that is not known."""

    def check(self, job: Job) -> None:
        """Raises ContractError for what no worker can play. Warns of what this machine does not
        know, because the workers may know it.
        """
        options = (job.agent_args, job.user, job.reward_args, job.context)
        kind = (job.env, job.split, job.agent, job.reward, *map(repr, options))
        if job.task < self._tasks.get(kind, 0):
            return
        self._tasks[kind] = self._look(job)

    def _look(self, job: Job) -> float:
        """The number of tasks like this one."""
        try:
            worker = for_clients()
            unknown = worker.check_job(job, [job.task])
            if not unknown:
                return int(worker.task_count(job.env, job.split))
        except ImportError:
            return inf
        except JobFailure as e:
            raise ContractError(f"{job.title}: {e}") from e
        log.warning("run %s: %s; the workers may know it", job.run, unknown)
        return inf  # one warning is enough
