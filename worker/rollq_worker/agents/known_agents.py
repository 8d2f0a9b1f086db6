"""Agent programs by name: functions of installed packages, and files of this process.

A function's name is an entry point of the group `rollq.agents`. A file is called by its stem and the first digits of
its hash, `solver@0123456789ab`, so a job carries a name, never a path, and only a worker that was given the same file
plays it. `solver.py:play` is a function in a file; without a function, the file is a command for a child process.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from rollq.errors import JobFailure
from rollq.job import NAME, History, Job, Json
from rollq_worker.agents.programs import AgentFunction, AgentProcess, AgentThread, Starter, command_of
from rollq_worker.episode.strategies import AGENTS
from rollq_worker.failures import ForOtherWorkers

GROUP = "rollq.agents"
FILES_VARIABLE = "ROLLQ_AGENT_FILES"
"""Environment variable: the agent files of this process, `solver.py:play,other.sh`."""
DIGITS = 12
"""Hexadecimal digits of the hash in a name."""


class AgentFile(NamedTuple):
    """A file with an agent."""

    path: Path
    function: str
    """The function in it; "": the file is a command."""
    name: str


def is_program(name: str) -> bool:
    """Whether a job's agent is a program, and not one of rollq's own strategies."""
    return name not in AGENTS


def agent_starter(job: Job) -> Starter:
    """What starts the job's agent. Raises JobFailure, or ForOtherWorkers for a file that is not here."""
    name, args = job.agent, job.agent_args
    if job.history is History.TEMPLATE or job.routed_experts:
        what = "routed_experts" if job.routed_experts else "history=template"
        raise JobFailure(f"agent {name!r}: {what} is not for agent programs")
    if "@" in name:
        file = _file_of(name)
        if not file.function:
            return lambda given, on_end: AgentProcess(name, command_of(file.path), given, args, on_end)
        function = _function_in(file)
    else:
        function = _installed(name)
    _check_arguments(name, function, args)
    return lambda given, on_end: AgentThread(name, function, given, args, on_end)


def check_agent(job: Job) -> str:
    """What this machine does not know of the job's agent, which the workers may know; else empty. Raises JobFailure for
    an agent that no worker can play."""
    try:
        agent_starter(job)
    except ForOtherWorkers as e:
        return str(e)
    return ""


def add_file(text: str) -> str:
    """Have this process and its children know the file. Returns the agent's name. Raises JobFailure."""
    file = agent_file(text)
    known = os.environ.get(FILES_VARIABLE, "")
    entry = f"{file.path}:{file.function}" if file.function else str(file.path)
    if entry not in known.split(","):
        os.environ[FILES_VARIABLE] = f"{known},{entry}" if known else entry
    return file.name


def agent_file(text: str) -> AgentFile:
    """The file `solver.py:play`, or `agent.sh`. Raises JobFailure when it cannot be read."""
    where, _, function = text.partition(":")
    try:
        digest = sha256(Path(where).read_bytes()).hexdigest()
    except OSError as e:
        raise JobFailure(f"the agent {text!r} cannot be read: {e.strerror or e}") from e
    stem = Path(where).stem
    if not NAME.fullmatch(stem):
        raise JobFailure(f"the name of the agent's file must match {NAME.pattern}, not {stem!r}")
    title = f"{stem}.{function}" if function else stem
    return AgentFile(Path(where).resolve(), function, f"{title}@{digest[:DIGITS]}")


def _file_of(name: str) -> AgentFile:
    known = [agent_file(text.strip()) for text in os.environ.get(FILES_VARIABLE, "").split(",") if text.strip()]
    for file in known:
        if file.name == name:
            return file
    title = name.partition("@")[0]
    other = next((f", but {file.name}" for file in known if file.name.startswith(f"{title}@")), "")
    raise ForOtherWorkers(
        f"agent {name!r}: there is no such file here{other}; give every worker the same file: rollq worker --agent FILE"
    )


@cache
def _function_in(file: AgentFile) -> AgentFunction:
    module_name = "rollq_agent_" + "".join(c if c.isalnum() else "_" for c in file.name)
    spec = importlib.util.spec_from_file_location(module_name, file.path)
    if spec is None or spec.loader is None:
        raise JobFailure(f"agent {file.name!r}: {file.path.name} is no Python file, so it has no function")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
        return _callable(file.name, getattr(module, file.function, None), f"{file.path.name}:{file.function}")
    except BaseException as e:
        del sys.modules[module_name]
        if isinstance(e, JobFailure):
            raise
        raise JobFailure(f"agent {file.name!r} ({file.path.name}): {type(e).__name__}: {e}") from e


@cache
def _installed(name: str) -> AgentFunction:
    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not entries:
        names = ", ".join(sorted({*AGENTS, *(entry.name for entry in entry_points(group=GROUP))}))
        raise JobFailure(f"agent {name!r} is unknown here; there are {names} (packages add more: {GROUP!r})")
    if len({entry.value for entry in entries}) > 1:
        values = " and ".join(entry.value for entry in entries)
        raise JobFailure(f"agent {name!r} is claimed by {values}: uninstall one of the two packages")
    try:
        return _callable(name, entries[0].load(), entries[0].value)
    except Exception as e:  # other people's code
        if isinstance(e, JobFailure):
            raise
        raise JobFailure(f"agent {name!r} ({entries[0].value}): {type(e).__name__}: {e}") from e


def _callable(name: str, found: object, where: str) -> Callable[..., object]:
    if not callable(found):
        raise JobFailure(f"agent {name!r}: {where} is a {type(found).__name__}, not a function")
    return found


def _check_arguments(name: str, function: AgentFunction, args: Mapping[str, Json]) -> None:
    try:
        inspect.signature(function).bind(None, **args)
    except TypeError as e:
        raise JobFailure(f"agent {name!r} with agent_args {dict(args)!r:.200}: {e}") from e
