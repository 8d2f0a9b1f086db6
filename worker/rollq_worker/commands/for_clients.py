"""The one door for rollq's own commands into this package: `rollq.worker_package` opens it.

It checks a job before it is submitted, names files, and gives hashes and texts of a tokenizer.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rollq.commands.flags.parser import near
from rollq.env import Task
from rollq.errors import RollqError
from rollq.job import Job, Json
from rollq.settings import Endpoint
from rollq_worker.agents.known_agents import add_file as add_agent_file
from rollq_worker.agents.known_agents import check_agent, is_program
from rollq_worker.commands.environment_names import task_count
from rollq_worker.context import context_factory
from rollq_worker.environments import domain, names
from rollq_worker.environments.files import add_file as add_environment_file
from rollq_worker.episode.strategies import agent_factory
from rollq_worker.extensions.authors_line import line_of
from rollq_worker.failures import FOREIGN_ERRORS
from rollq_worker.rewards import check_judged, reward_factory
from rollq_worker.users import user_factory

__all__ = [
    "add_agent_file",
    "add_environment_file",
    "check_job",
    "task_count",
    "token_texts",
    "tokenizer_hashes",
]


def check_job(job: Job, tasks: Sequence[int]) -> str:
    """Tasks of the job that this machine does not know, which the workers may know; else empty.

    Raises JobFailure for an agent strategy, a user simulator, a reward function or a context that
    no worker can play.
    """
    if not is_program(job.agent):
        agent_factory(job.agent, job.agent_args)
    task = Task(id="", hash="", instruction="", opening="", replies=["-"], moves=[])
    of_workers = Endpoint("http://known.to.the.workers/v1")
    options = (job.user, job.reward_args, job.context)
    endpoints = {str(each.get("endpoint")): of_workers for each in options}
    user_factory(job.user, task, seed=0, endpoints=endpoints)
    reward_factory(job.reward, job.reward_args, seed=0, endpoints=endpoints)
    context_factory(job, endpoints=endpoints)
    of_agent = check_agent(job) if is_program(job.agent) else ""
    return of_agent or _unknown_part(job) or _unplayable(job, tasks)


def tokenizer_hashes(
    where: str, template: str | None, template_kwargs: Mapping[str, Json]
) -> tuple[str, str]:
    """Hash of the tokenizer and hash of the chat template, by default its own.

    Raises SettingsError when one cannot be loaded, JobFailure when the template does not read an
    argument, ImportError when a package is missing.
    """
    from rollq_worker.tokens.tokenizer import load_tokenizer  # a check of jobs needs less

    tokenizer = load_tokenizer(where, template)
    tokenizer.with_arguments(template_kwargs)
    return tokenizer.hash, tokenizer.template_hash


def token_texts(where: str | None) -> Callable[[Sequence[int]], list[str]]:
    """A function that gives the text of each id, by the tokenizer of that name or directory; None:
    the one that rollq ships. Raises SettingsError.
    """
    from rollq_worker.tokens.tokenizer import load_tokenizer

    return partial(texts_of, load_tokenizer(where).decode)


def texts_of(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """The texts of these ids, which make `decode(ids)` side by side. A character that several
    tokens spell is the last one's, and the others are empty.
    """
    texts: list[str] = []
    before = 0  # where the context begins that is decoded with a token
    begun = 0  # where the character begins that is being spelt
    for place in range(len(ids)):
        text = decode(ids[before : place + 1])
        # So many tokens at most are taken together because they spell one character.
        last = place + 1 == len(ids) or place - begun + 1 >= 8
        if text.endswith("\ufffd") and not last:
            texts.append("")
            continue
        texts.append(text[len(decode(ids[before:begun])) :])
        before = begun
        begun = place + 1
    return texts


def _unknown_part(job: Job) -> str:
    environments = names()
    if not {job.env, job.env.partition(":")[0]} & set(environments):
        return f"there is no environment {job.env!r} on this machine{near(job.env, environments)}"
    try:
        splits = domain(job.env).splits()
    except RollqError as e:
        return str(e)
    if job.split not in splits:
        splits_there = f"{', '.join(splits)}{near(job.split, splits)}"
        return f"{job.env} has no split {job.split!r}; it has {splits_there}"
    count = splits[job.split]
    if job.task < count:
        return ""
    return f"{job.env}/{job.split} has tasks 0 to {count - 1}, not {job.task}"


def _unplayable(job: Job, tasks: Sequence[int]) -> str:
    """The number of the first tasks that no worker can play, such as rows of a dataset without a
    prompt.
    """
    environment = domain(job.env)
    first_tasks = tasks[:200]
    failures = []
    for task in first_tasks:
        try:
            check_judged(job, environment.task(job.split, task))
        except RollqError as e:
            failures.append((task, str(e)))
        except FOREIGN_ERRORS as e:
            failures.append((task, f"{type(e).__name__}: {e} {line_of(e)}".rstrip()))
    if not failures:
        return ""
    task, failure = failures[0]
    return (
        f"{len(failures)} of {len(first_tasks)} tasks of {job.env} cannot be played, the first is "
        f"{task}: {failure}"
    )
