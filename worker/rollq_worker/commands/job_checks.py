"""What `rollq submit` and `rollq eval` ask of the worker's package before they submit: whether a job can be played, and
which tokenizer a name stands for. They find it by the entry-point groups `rollq.job_checks` and `rollq.tokenizers`."""

from collections.abc import Mapping

from rollq.errors import RollqError
from rollq.job import Job, Json
from rollq.settings import Endpoint
from rollq_worker.environments import domain, names
from rollq_worker.episode.strategies import agent_factory
from rollq_worker.protocols import Task
from rollq_worker.rewards import reward_factory
from rollq_worker.users import user_factory


def check(job: Job) -> str:
    """A warning when this machine does not know the job's task, because the workers may know it; else empty.

    Raises JobFailure for an agent strategy, a user simulator or a reward function that no worker can play.
    """
    agent_factory(job.agent, job.agent_args)
    task = Task(id="", hash="", instruction="", opening="", replies=["-"], moves=[])
    endpoints = {str(job.user.get("endpoint")): Endpoint("http://known.to.the.workers/v1")}
    user_factory(job.user, task, seed=0, endpoints=endpoints)
    judged_by = {str(job.reward_args.get("endpoint")): Endpoint("http://known.to.the.workers/v1")}
    reward_factory(job.reward, job.reward_args, seed=0, endpoints=judged_by)
    unknown = _unknown_part(job)
    return f"{unknown} is not known on this machine; do the workers have it?" if unknown else ""


def tokenizer_hashes(where: str, template: str | None, template_kwargs: Mapping[str, Json]) -> tuple[str, str]:
    """Hash of the tokenizer and hash of the chat template, by default its own.

    Raises SettingsError when one cannot be loaded, JobFailure when the template does not read an argument, ImportError
    when a package is missing.
    """
    from rollq_worker.tokens.tokenizer import load_tokenizer  # needs packages that a check of jobs can do without

    tokenizer = load_tokenizer(where, template)
    tokenizer.with_arguments(template_kwargs)
    return tokenizer.hash, tokenizer.template_hash


def _unknown_part(job: Job) -> str:
    if not {job.env, job.env.partition(":")[0]} & set(names()):
        return f"environment {job.env!r}"
    try:
        count = domain(job.env).splits().get(job.split, 0)
    except RollqError:
        return ""  # what it needs is not installed here
    if job.task < count:
        return ""
    return f"task {job.task} of {job.env}/{job.split}" if count else f"{job.env}/{job.split}"
