"""Agent programs by name: functions of installed packages, and files of this process.

A function's name is an entry point of the group `rollq.agents`. A file is called by its stem and
the first digits of its hash, `solver@0123456789ab`, so a job carries a name, never a path, and only
a worker that was given the same file plays it. `solver.py:play` is a function in a file; without a
function, the file is a command for a child process.
"""

from functools import cache, partial

from rollq.env import AgentFunction
from rollq.errors import ForOtherWorkers, JobFailure, RollqError
from rollq.job import History, Job
from rollq_worker.agents.programs.running import AgentProcess, AgentThread, Starter, command_of
from rollq_worker.agents.programs.users import agent_users
from rollq_worker.episode.strategies import AGENTS
from rollq_worker.extensions.named_files import NamedFile, NamedFiles
from rollq_worker.extensions.plug_ins import as_function, check_arguments, function_named

GROUP = "rollq.agents"
FILES = NamedFiles("ROLLQ_AGENT_FILES", what="agent", flag="--agent", default=lambda path: "")


def is_program(name: str) -> bool:
    """True if a job's agent is a program, and not one of rollq's own strategies."""
    return name not in AGENTS


def agent_starter(job: Job) -> Starter:
    """Starter of the job's agent. Raises JobFailure, or ForOtherWorkers for a file that is not
    here.
    """
    name = job.agent
    args = job.agent_args
    for what, is_set in (
        ("history=template", job.history is History.TEMPLATE),
        ("routed_experts", job.routed_experts),
        ("context", job.context),
    ):
        if is_set:
            raise JobFailure(f"agent {name!r}: {what} is not for agent programs")
    if "@" in name:
        file = FILES.of(name)
        if not file.part:
            start = partial(
                AgentProcess, name, command_of(file.path), users=agent_users(), job_id=job.id
            )
            return lambda episode, on_end: start(episode, args, on_end)
        function = _function_in(file)
    else:
        function = function_named("agent", name, GROUP, frozenset(AGENTS))
    check_arguments("agent", name, function, 1, "agent_args", args)
    return lambda episode, on_end: AgentThread(name, function, episode, args, on_end)


def check_agent(job: Job) -> str:
    """The part of the job's agent that this machine lacks, and that workers may have; "" if it
    lacks nothing.

    Raises JobFailure for an agent that no worker can play.
    """
    try:
        agent_starter(job)
    except ForOtherWorkers as e:
        return str(e)
    return ""


def add_file(text: str) -> str:
    """Has this process and its children know the file. Returns the agent's name. Raises
    JobFailure.
    """
    return FILES.add(text)


def load_functions() -> None:
    """Runs the files whose functions are agents. Raises JobFailure for what is none."""
    for file in FILES.readable():
        if file.part:
            _function_in(file)


@cache
def _function_in(file: NamedFile) -> AgentFunction:
    where = f"{file.path.name}:{file.part}"
    if file.path.suffix != ".py":
        raise JobFailure(
            f"agent {file.name!r}: {file.path.name} is no Python file, so it has no function"
        )
    try:
        function = getattr(file.run(), file.part, None)
        return as_function("agent", file.name, function, where)
    except RollqError:
        raise
    except BaseException as e:  # sys.exit() in somebody's file must not end a worker
        raise JobFailure(f"agent {file.name!r} ({where}): {type(e).__name__}: {e}") from e
