"""Shorter conversations in place of long ones, by the kind in a job's `context`.

There are `window`, `summary`, and those of installed packages.

Another kind is an entry point of the group `rollq.contexts`: a `rollq.env.ContextHook` that takes
the rest of the job's `context` by keyword.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

from rollq.env import ContextHook
from rollq.errors import JobFailure, UserFailure
from rollq.events import Message
from rollq.images import references
from rollq.job import Job, Json
from rollq.settings import Endpoint
from rollq_worker.context.summary import MODEL_PROMPT, POLICY_REQUEST, ModelSummary, OwnSummary
from rollq_worker.context.window import Window
from rollq_worker.extensions.plug_ins import check_arguments, function_named
from rollq_worker.protocols import Context
from rollq_worker.text.whole_text import whole_json

GROUP = "rollq.contexts"
WINDOW, SUMMARY = "window", "summary"


def context_factory(
    job: Job,
    *,
    endpoints: Mapping[str, Endpoint],
    check: Callable[[], None] | None = None,
    away: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Context | None:
    """The context of a job, None without one. `check` and `away` are those of `ChatModel`.

    Raises JobFailure for a context that cannot be had.
    """
    if not job.context:
        return None
    options = dict(job.context)
    kind = options.pop("kind")
    if kind not in (WINDOW, SUMMARY):
        function = function_named("context", kind, GROUP, frozenset({WINDOW, SUMMARY}))
        check_arguments("context", kind, function, 3, "context", options)
        return Context(shorten=_with_checks(partial(function, **options)))
    over = _count(job, options, "over")
    if over >= job.budget.max_tokens:
        raise _refusal(
            job, f"over must be below budget.max_tokens, which is {job.budget.max_tokens}"
        )
    if kind == SUMMARY:
        return _summary(job, options, over, endpoints, seed=job.seed, check=check, away=away)
    turns = _count(job, options, "turns")
    _no_more(job, options, "over and turns")
    return Context(shorten=Window(over, turns), over=over)


def asks_policy(job: Job) -> bool:
    """True if a turn of the policy may be answered by the request for a summary."""
    return job.context.get("kind") == SUMMARY and "endpoint" not in job.context


def _summary(
    job: Job, options: dict[str, Json], over: int, endpoints: Mapping[str, Endpoint], **asking: Any
) -> Context:
    ask = options.pop("ask", POLICY_REQUEST if asks_policy(job) else MODEL_PROMPT)
    if not isinstance(ask, str) or not ask.strip():
        raise _refusal(job, f"ask must be a text, not {ask!r:.60}")
    if asks_policy(job):
        _no_more(job, options, "over and ask, and for another model endpoint and model")
        summary = OwnSummary(over, ask)
        return Context(shorten=summary, request_for=summary.request_for, over=over)
    from rollq_worker.remote.chat_model import ChatModel, ChatOptions  # which needs requests

    chat = ChatOptions.read(options, "summary")
    model = ChatModel(chat, endpoints, role="summary", failure=UserFailure, **asking)
    shorten = ModelSummary(over, ask, model.ask)
    return Context(shorten=shorten, over=over, failure=UserFailure, longest_s=chat.longest_s)


def _count(job: Job, options: dict[str, Json], name: str) -> int:
    value = options.pop(name, None)
    if type(value) is not int or value < 1:
        raise _refusal(job, f"{name} must be a whole number of at least 1, not {value!r:.60}")
    return value


def _no_more(job: Job, options: Mapping[str, Json], allowed: str) -> None:
    if options:
        raise _refusal(job, f"it takes {allowed}, not {', '.join(map(str, options))}")


def _refusal(job: Job, why: str) -> JobFailure:
    return JobFailure(f"context {job.context['kind']!r}: {why}")


def _with_checks(hook: ContextHook) -> ContextHook:
    """A hook of another package that gets a copy of the messages, and whose own are checked: plain
    ones that the policy can answer, with images of the conversation.
    """

    def shorten(
        opening: Sequence[Message], messages: Sequence[Message], tokens: int
    ) -> Sequence[Message] | None:
        shortened = hook(*deepcopy((opening, messages)), tokens)
        if shortened is None:
            return None
        plain: list[Message] = whole_json(json.loads(json.dumps(list(shortened), allow_nan=False)))
        if not plain or plain[-1]["role"] not in ("user", "tool"):
            raise ValueError(
                f"its messages must end with what the policy answers, not {plain[-1:]!r:.100}"
            )
        if empty := [said for said in plain if not isinstance(said.get("content"), str | list)]:
            raise ValueError(f"a message of its has no content: {empty[0]!r:.100}")
        shown = references([*opening, *messages])
        if new := [image for image in references(plain) if image not in shown]:
            raise ValueError(f"it shows an image that the conversation does not: {new[0]!r:.100}")
        return plain

    return shorten
