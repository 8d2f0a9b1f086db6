"""User simulators, named by a job: `{"kind": "scripted"}`, `{"kind": "oracle"}`, `{"kind": "openai", "endpoint": ...}`.

A job names an endpoint, never an address; what the name stands for is a setting of the worker.
"""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Protocol

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.protocols import Task, User
from rollq_worker.users.oracle import OracleUser
from rollq_worker.users.scripted import ScriptedUser

KINDS = ("scripted", "oracle", "openai")


REPLY_S = 60.0
"""Longest reply of a user that does not say how long it may take."""


class Endpoint(Protocol):
    """Where an OpenAI-compatible server listens; `rollq.settings` makes them."""

    @property
    def url(self) -> str:
        """Up to and with `/v1`."""
        ...

    @property
    def key_file(self) -> str | PathLike[str] | None:
        """Holds the API key; read when it is used."""
        ...


def user_factory(
    spec: Mapping[str, Json],
    task: Task,
    *,
    seed: int,
    endpoints: Mapping[str, Endpoint],
    check: Callable[[], None] | None = None,
) -> User:
    """A fresh simulator for one episode of `task`.

    `check` is called while a simulator waits and raises when the attempt must stop. Raises JobFailure for a spec that
    cannot be served.
    """
    kind = spec.get("kind")
    options = {name: value for name, value in spec.items() if name != "kind"}
    if kind == "openai":
        # Imported here: the replay engine plays scripted users and is installed without requests.
        from rollq_worker.users.openai import OpenAIUser, Options

        chosen = Options.read(options)
        if (endpoint := endpoints.get(chosen.endpoint)) is None:
            known = ", ".join(sorted(endpoints)) or "none"
            raise JobFailure(
                f"user endpoint {chosen.endpoint!r} is unknown to this worker, which knows {known}: "
                "name its address in ROLLQ_USER_ENDPOINTS"
            )
        return OpenAIUser(task.instruction, chosen, endpoint, seed=seed, check=check)
    if kind not in KINDS:
        raise JobFailure(f"user kind {kind!r} is unknown; there are {', '.join(KINDS)}")
    if options:
        raise JobFailure(f"user kind {kind!r} takes no {', '.join(sorted(map(str, options)))}")
    if kind == "oracle":
        return OracleUser(task)
    return ScriptedUser(task.opening, task.replies)


def longest_reply_s(user: User) -> float:
    """Seconds after which a user that has not replied never will."""
    return float(getattr(user, "longest_reply_s", REPLY_S))
