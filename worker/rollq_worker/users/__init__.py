"""User simulators, named by a job: `{"kind": "scripted"}`, `{"kind": "oracle"}`, `{"kind":
"openai", "endpoint": ...}`.

A job names an endpoint, never an address; the address is a setting of the worker.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rollq.env import Task, User
from rollq.errors import EnvironmentFailure, JobFailure
from rollq.job import Json
from rollq.settings import Endpoint
from rollq_worker.failures import errors_become
from rollq_worker.users.oracle import OracleUser
from rollq_worker.users.scripted import ScriptedUser

KINDS = ("scripted", "oracle", "openai")


def user_factory(
    spec: Mapping[str, Json],
    task: Task,
    *,
    seed: int,
    endpoints: Mapping[str, Endpoint],
    check: Callable[[], None] | None = None,
    away: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> User:
    """A fresh simulator for one episode of `task`. `check` and `away` are those of `ChatModel`.
    Raises JobFailure for a spec that cannot be served, and EnvironmentFailure for a task that lacks
    what the user says.
    """
    options = dict(spec)
    kind = options.pop("kind", None)
    if kind not in KINDS:
        raise JobFailure(f"user kind {kind!r} is unknown; there are {', '.join(KINDS)}")
    if options and kind != "openai":
        raise JobFailure(f"user kind {kind!r} takes no {', '.join(sorted(map(str, options)))}")
    with errors_become(EnvironmentFailure, f"the user of task {task.id!r}"):
        if kind == "openai":
            return _openai_user(options, task, endpoints, seed=seed, check=check, away=away)
        if kind == "oracle":
            return OracleUser(task)
        return ScriptedUser(task.opening, task.replies)


def _openai_user(
    options: Mapping[str, Json], task: Task, endpoints: Mapping[str, Endpoint], **asking: Any
) -> User:
    # Imported here: the replay engine plays scripted users and is installed without requests.
    from rollq_worker.remote.chat_model import ChatOptions
    from rollq_worker.users.openai import OpenAIUser

    return OpenAIUser(
        task.instruction + task.user_tools, ChatOptions.read(options, "user"), endpoints, **asking
    )


def longest_reply_s(user: User) -> float:
    """Longest time in seconds that a reply of this user takes."""
    return float(getattr(user, "longest_reply_s", 60.0))
