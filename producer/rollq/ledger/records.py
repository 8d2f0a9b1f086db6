"""The parts that a group's jobs share: the ledger stores their body and their first prompt once."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollq.errors import ContractError
from rollq.job import Job, parse_id
from rollq.wire.blob import plain
from rollq.wire.codec import decode_job
from rollq.wire.events import is_observed
from rollq.wire.shared_prompt import join_prompt, prompt_digest, split_prompt


def check_group(jobs: Sequence[Job], run: str) -> list[str]:
    """The jobs' ids. Raises ContractError unless they are distinct members of one group
    of the run.
    """
    first = jobs[0]
    for job in jobs:
        if (job.run, job.group) != (run, first.group):
            raise ContractError(
                f"job {job.id}: belongs to another group or run than {run}/{first.group}"
            )
        if _of_group(job) != _of_group(first):
            raise ContractError(
                f"job {job.id}: size, spare, min_viable, purpose, queue, routed_experts, "
                "teachers, models, reward, adapter or template_kwargs differ within the group"
            )
    ids = [job.id for job in jobs]
    if len(set(ids)) < len(ids):
        raise ContractError(f"group {run}/{first.group}: a sample is there twice")
    return ids


def _of_group(job: Job) -> tuple[Any, ...]:
    shape = job.size, job.spare, job.viable, job.purpose, job.queue, job.adapter
    graded_by = job.reward, job.reward_args, job.teachers
    return *shape, kwargs_text(job), job.routed_experts, job.models, *graded_by


def kwargs_text(job: Job) -> str:
    """The job's template_kwargs as JSON; equal arguments are equal texts."""
    return json.dumps(plain(job.template_kwargs, f"job {job.id}: template_kwargs"), sort_keys=True)


def sample_of(body: bytes, job_id: str, decoded: dict[bytes, Job] | None = None) -> Job:
    """The job in its own body, or in that of its group's first job, which has another sample.
    `decoded` keeps jobs by their bodies, so that a group's body is decoded once; its jobs then
    share their mappings. Raises ContractError.
    """
    job = decoded.get(body) if decoded else None
    if job is None:
        try:
            job = decode_job(body)
        except ContractError as e:
            raise type(e)(f"job {job_id}: {e}") from e
    if decoded is not None:
        decoded[body] = job
    _, _, sample = parse_id(job_id)
    if job.sample != sample and sample < job.members:
        job = job.member(sample, job.seq)
    if job.id != job_id:
        raise ContractError(f"job {job_id}: the blob is that of job {job.id}")
    return job


def entries(index: int, blobs: Sequence[bytes]) -> list[Any]:
    """A journal's blobs, the first at `index`, as scripts take them (lua/journal.lua). The prompt
    at entry 1 becomes a reference.
    """
    turns = "".join("1" if is_observed(blob) else "0" for blob in blobs)
    written = list(blobs)
    digest = b""
    content = b""
    has_prompt = index <= 1 < index + len(blobs)
    shared = split_prompt(blobs[1 - index]) if has_prompt else None
    if shared:
        written[1 - index], digest, content = shared
    return [turns, digest, content, *written]


def joined(entries: Sequence[bytes], prompts: Mapping[bytes, bytes], job_id: str) -> list[bytes]:
    """A journal with its prompt in place of the reference. `prompts`: those of the group, by
    digest. Raises ContractError.
    """
    journal = list(entries)
    digest = prompt_digest(journal[1], job_id) if len(journal) > 1 else None
    if digest:
        journal[1] = join_prompt(journal[1], prompts.get(digest), job_id)
    return journal
