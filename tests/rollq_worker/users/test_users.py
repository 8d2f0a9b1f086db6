"""Users as a job names them."""

from dataclasses import replace
from typing import Any

import pytest

from rollq.env import Task, User
from rollq.errors import EnvironmentFailure, JobFailure
from rollq.settings import Endpoint
from rollq_worker.users import user_factory
from tests.rollq_worker.users.tasks import TASK


def make(
    spec: dict[str, object], endpoints: dict[str, Endpoint] | None = None, task: Task = TASK
) -> User:
    return user_factory(spec, task, seed=7, endpoints=endpoints or {})


def test_a_scripted_user_reads_its_lines_and_repeats_the_last() -> None:
    user = make({"kind": "scripted"})
    assert user.open() == TASK.opening
    assert [user.reply("?") for _ in range(5)] == [
        *TASK.replies,
        TASK.replies[-1],
        TASK.replies[-1],
    ]


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ({"kind": "scripted"}, {"replies": ()}),
        ({"kind": "oracle"}, {"instruction": None}),
        ({"kind": "openai", "endpoint": "e", "model": "m"}, {"instruction": None}),
    ],
)
def test_a_task_without_words_is_the_environments_failure(
    spec: dict[str, object], missing: dict[str, Any]
) -> None:
    with pytest.raises(EnvironmentFailure, match=f"the user of task {TASK.id!r}: "):
        make(spec, {"e": Endpoint("u")}, replace(TASK, **missing))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "user kind None is unknown; there are scripted, oracle, openai"),
        ({"kind": ["scripted"]}, "unknown"),
        ({"kind": "scripted", "model": "m"}, "user kind 'scripted' takes no model"),
        ({"kind": "openai"}, "needs endpoint and model"),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "api_key": "k", "url": "u"},
            "takes no api_key, url; it takes",
        ),
        ({"kind": "openai", "endpoint": "e", "model": ""}, "user model cannot be ''"),
        ({"kind": "openai", "endpoint": 3, "model": "m"}, "user endpoint cannot be 3"),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "temperature": float("nan")},
            "temperature cannot be nan",
        ),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "max_tokens": 0},
            "max_tokens cannot be 0",
        ),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "timeout_s": float("inf")},
            "timeout_s cannot be inf",
        ),
        (
            {"kind": "openai", "endpoint": "e", "model": "m", "retries": 1.5},
            r"retries cannot be 1\.5",
        ),
        (
            {"kind": "openai", "endpoint": "e", "model": "m"},
            "'e' is unknown to this worker, which knows none: .* ROLLQ_USER_E",
        ),
    ],
)
def test_a_user_that_a_job_cannot_have(spec: dict[str, object], words: str) -> None:
    with pytest.raises(JobFailure, match=words):
        make(spec)


def test_the_known_endpoints_are_named() -> None:
    with pytest.raises(JobFailure, match="which knows a, b:"):
        make(
            {"kind": "openai", "endpoint": "e", "model": "m"},
            {"b": Endpoint("u"), "a": Endpoint("u")},
        )
