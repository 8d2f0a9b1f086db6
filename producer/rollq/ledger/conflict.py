"""Names the differences between a job and the one that was submitted before under its id."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from rollq.errors import ContractError, JobConflict
from rollq.job import Job
from rollq.ledger.records import sample_of
from rollq.ledger.scripts import Scripts


def conflict(scripts: Scripts, job_id: str, jobs: Sequence[Job]) -> JobConflict:
    """The error. `jobs`: what is submitted now. Raises LedgerError."""
    group, _ = scripts.parse(job_id)
    pipe = scripts.redis.pipeline(transaction=False)
    pipe.hget(scripts.keys.job(job_id), "body")
    pipe.hget(scripts.keys.group(group), "body")
    pipe.hexists(scripts.keys.meta, "sealed")
    own, of_group, sealed = scripts.guard(f"job {job_id}", pipe.execute)
    ours = next((job for job in jobs if job.id == job_id), jobs[0])
    differences = ""
    if own or of_group:
        with suppress(ContractError):  # the stored job cannot be read
            differences = _differences(ours, sample_of(own or of_group, job_id))
    also = " The run is sealed, so it takes no other groups, either." if sealed else ""
    return JobConflict(
        f"job {job_id} was submitted before with other content{differences}: submit it as "
        f"before, or use another run.{also}"
    )


def _differences(ours: Job, theirs: Job) -> str:
    differences = []
    for field in fields(Job):
        before, now = getattr(theirs, field.name), getattr(ours, field.name)
        if field.name != "seq" and before != now:
            differences.append(f"{field.name} was {before!r:.80}, not {now!r:.80}")
    return f" ({', '.join(differences)})" if differences else ""
