"""Looks at a job before it is submitted, for `rollq submit` and `rollq eval`. They find it by `rollq.job_checks`."""

from rollq.errors import RollqError
from rollq.job import Job
from rollq.settings import Endpoint
from rollq_worker.environments import domain, names
from rollq_worker.protocols import Task
from rollq_worker.users import user_factory


def check(job: Job) -> str:
    """A warning about a task that is not known here, where the workers may have more environments; else empty.

    Raises JobFailure for a user simulator that no worker can play.
    """
    task = Task(id="", hash="", instruction="", opening="", replies=["-"], moves=[])
    endpoints = {str(job.user.get("endpoint")): Endpoint("http://known.to.the.workers/v1")}
    user_factory(job.user, task, seed=0, endpoints=endpoints)
    unknown = _unknown(job)
    return f"{unknown} is not known on this machine; do the workers have it?" if unknown else ""


def _unknown(job: Job) -> str:
    if not {job.env, job.env.partition(":")[0]} & set(names()):
        return f"environment {job.env!r}"
    try:
        count = domain(job.env).splits().get(job.split, 0)
    except RollqError:
        return ""  # what it needs is not installed here
    if job.task < count:
        return ""
    return f"task {job.task} of {job.env}/{job.split}" if count else f"{job.env}/{job.split}"
