"""What rollq's commands ask of this package, through `rollq.worker_package`. Each function imports
what it needs.
"""

from collections.abc import Callable, Mapping, Sequence

from rollq.job import Job, Json


def check_job(job: Job, tasks: Sequence[int]) -> str:
    """See `job_checks.check`."""
    from rollq_worker.commands.job_checks import check

    return check(job, tasks)


def tokenizer_hashes(
    where: str, template: str | None, template_kwargs: Mapping[str, Json]
) -> tuple[str, str]:
    """See `job_checks.tokenizer_hashes`."""
    from rollq_worker.commands import job_checks

    return job_checks.tokenizer_hashes(where, template, template_kwargs)


def token_texts(where: str | None) -> Callable[[Sequence[int]], list[str]]:
    """See `token_texts.token_texts`."""
    from rollq_worker.commands import token_texts

    return token_texts.token_texts(where)


def add_agent_file(text: str) -> str:
    """Make a file an agent program of this process and its children. Returns its name. Raises
    JobFailure.
    """
    from rollq_worker.agents.known_agents import add_file

    return add_file(text)


def add_environment_file(text: str) -> str:
    """Make a file an environment of this process and its children. Returns its name. Raises
    JobFailure.
    """
    from rollq_worker.environments.files import add_file

    return add_file(text)
