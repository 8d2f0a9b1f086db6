"""Asks a language model behind an OpenAI-compatible endpoint for a message.

A job names the endpoint and the model; the worker knows the address and the key. An endpoint that
is away is waited for; what it does to this request alone spends the job's retries. The invariants:
every error of the endpoint becomes the failure that the caller names, and no key gets into a
message, a repr or the cause of an error. It does not know what the model is asked for.
"""

import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

from rollq.errors import JobFailure, RolloutFailure
from rollq.job import Json
from rollq.numbers import is_number
from rollq.settings import Endpoint
from rollq_worker.remote.http_client import HttpClient, NoResponse, Response
from rollq_worker.remote.waiting import backoff, wait
from rollq_worker.text.whole_text import whole_characters

log = logging.getLogger(__name__)

Away = Callable[[str], AbstractContextManager[object]]
"""A block in which the attempt waits for something that is away, whose name and trouble it gets."""

BACKOFF_S = (0.5, 8.0)
"""First and longest pause in seconds between two requests, before jitter."""
MOST_OUTAGES = 3
"""So often an endpoint may break down at one message. After that it may be the message that breaks
it.
"""
PROBE = ({"role": "user", "content": "Say yes."},)
"""Asked after a failure, to tell an endpoint that is away from one that fails this request only."""
PROBE_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 10.0
MAX_BYTES = 1 << 20
"""Longest answer in bytes; a longer one is not a chat message."""
RETRIED = frozenset({408, 425, 429})
"""Statuses below 500 after which a repeat may help."""
INSTEAD = {"max_tokens": "max_completion_tokens"}
"""Newer names of parameters that some models refuse, as OpenAI's with reasoning do."""

UNFINISHED = {
    "length": "was cut short: max_tokens is too low for it",
    "content_filter": "was cut short by a filter",
    "tool_calls": "calls a tool, and it was given none",
}
"""Answers that are not complete, by finish_reason. Half a message would be taken for the whole."""

_OF_THE_VALUE = re.compile(
    r"context|too (?:large|long|high)|exceed|at (?:most|least)|(?:greater|less) than|between", re.I
)
"""Words in a refusal of a value, or of one beside this conversation: the parameter itself is known.
"""
_TAGS = (
    "think|thinking|thought|reasoning"
    r"|seed:think|mm:think|think:[^\s<>]+|longcat_think|ifm\|think(?:_fast(?:er)?)?"
)
_THOUGHT = re.compile(
    rf"<({_TAGS})>.*?(?:</\1>|\Z)"
    r"|\[THINK\].*?(?:\[/THINK\]|\Z)"
    r"|<\|channel\|>analysis<\|message\|>.*?(?:<\|end\|>|\Z)"
    r"|<\|(?:return|end)\|>\s*\Z",
    re.S,
)
"""Reasoning, also in the channel of harmony, and harmony's end of a reply."""
_END_OF_THOUGHT = re.compile(rf"</(?:{_TAGS})>|\[/THINK\]|<\|channel\|>final<\|message\|>")
"""End of a thought. Some templates open it in the prompt, so that only its end is in the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """A job's options for a model."""

    endpoint: str
    """Name of the endpoint. The worker knows its address."""
    model: str
    temperature: float | None = None
    """Sampling temperature; None for the endpoint's default."""
    max_tokens: int = 1024
    """Most tokens of one message, reasoning included."""
    timeout_s: float = 60.0
    """Seconds for one request. All requests for one message take at most (retries + 1) times that,
    without the time for which the endpoint is away.
    """
    retries: int = 4
    """Most repeats for one message."""

    @classmethod
    def read(cls, options: Mapping[str, Json], role: str) -> Self:
        """The options in a job; `role` is the part that the model plays. Raises JobFailure."""
        names = [field.name for field in fields(cls)]
        unknown = sorted(str(name) for name in options if name not in names)
        if unknown:
            raise JobFailure(
                f"{role} model takes no {', '.join(unknown)}; it takes {', '.join(names)}"
            )
        missing = [name for name in ("endpoint", "model") if name not in options]
        if missing:
            raise JobFailure(f"{role} model needs {' and '.join(missing)}")
        read = cls(**options)
        for name, is_valid in _IS_VALID.items():
            value = getattr(read, name)
            if not is_valid(value):
                raise JobFailure(f"{role} {name} cannot be {value!r}")
        return read

    @property
    def longest_s(self) -> float:
        """Seconds for all requests for one message, with some to spare."""
        return self.timeout_s * (self.retries + 1) + 10.0


_IS_VALID: Mapping[str, Callable[[Any], bool]] = {
    "endpoint": lambda value: isinstance(value, str) and value != "",
    "model": lambda value: isinstance(value, str) and value != "",
    "temperature": lambda value: value is None or (is_number(value) and 0 <= value <= 2),
    "max_tokens": lambda value: type(value) is int and value >= 1,
    "timeout_s": lambda value: is_number(value) and 0 < value <= 3600,
    "retries": lambda value: type(value) is int and 0 <= value <= 100,
}


class ChatModel:
    """A model that plays a `role`, such as the user. Threads may share it."""

    def __init__(
        self,
        options: ChatOptions,
        endpoints: Mapping[str, Endpoint],
        *,
        role: str,
        failure: type[RolloutFailure],
        seed: int,
        check: Callable[[], None] | None = None,
        away: Away = nullcontext,
    ) -> None:
        """`failure` is raised when the endpoint gives no message. `check` is called while this
        waits and raises when the attempt must stop; `away` is around the time for which the
        endpoint is away. Raises JobFailure for an endpoint that is unknown here.
        """
        endpoint = endpoints.get(options.endpoint)
        if endpoint is None:
            names = ", ".join(sorted(endpoints)) or "none"
            raise JobFailure(
                f"{role} endpoint {options.endpoint!r} is unknown to this worker, which knows "
                f"{names}: name its address in ROLLQ_USER_ENDPOINTS"
            )
        self._options = options
        self._endpoint = endpoint
        self._role = role
        self._failed = failure
        self._seed = seed
        self._check = check or (lambda: None)
        self._away = away

    def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The model's next message, without its thoughts. Asks until there is one, the retries are
        spent, or the time for all of them is over.
        """
        tried = 0
        tries = self._options.retries + 1
        outages = 0
        left_s = self._options.timeout_s * tries
        while True:
            self._check()
            began = time.monotonic()
            try:
                return self._request(messages, min(self._options.timeout_s, left_s))
            except _Retry as e:
                failed = e
            left_s -= time.monotonic() - began
            may_wait = failed.may_be_away and left_s > 0 and outages < MOST_OUTAGES
            if may_wait and self._was_away(failed):
                outages += not failed.busy
                continue
            pause_s = backoff(tried, *BACKOFF_S)
            tried += 1
            left_s -= pause_s
            if tried == tries or left_s <= 0:
                raise self._failure(f"{failed} (tried {tried} times)")
            wait(pause_s, self._check)

    def _was_away(self, failed: "_Retry") -> bool:
        """Waits until the endpoint answers anything, and for as long as it asks for. False when it
        answers at once: then the request is to blame.
        """
        attempt = 0
        with self._away(f"the {self._role}'s endpoint {self._options.endpoint!r}, which {failed}"):
            while (away := self._no_answer()) is not None:
                wait(max(backoff(attempt, *BACKOFF_S), away.pause_s), self._check)
                attempt += 1
            if not attempt:
                wait(failed.pause_s, self._check)
        return attempt > 0

    def _no_answer(self) -> "_Retry | None":
        """Reason why the endpoint has no answer for a question that is always the same."""
        try:
            self._request(PROBE, min(PROBE_TIMEOUT_S, self._options.timeout_s))
        except _Retry as e:
            return e if e.may_be_away else None
        except RolloutFailure:
            pass  # it refuses, which is an answer
        return None

    def _request(self, messages: Sequence[Mapping[str, str]], timeout_s: float) -> str:
        """One request, and another one where a parameter is refused. Raises _Retry if a repeat may
        help, else the failure.
        """
        key = self._key()
        while True:
            body = self._body(messages)
            response = self._post(body, key, timeout_s)
            if response.status == 200:
                return _text(response)
            if response.status >= 500 or response.status in RETRIED:
                answer = f"answered {response.status}"
                pause_s = _retry_after(response)
                raise _Retry(answer, pause_s, may_be_away=True, busy=response.status == 429)
            if response.status not in (400, 422) or not self._learn_refused_parameter(
                body, response
            ):
                raise self._failure(f"answered {response.status}{self._explain(response, key)}")

    def _body(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Json]:
        wanted: dict[str, Json] = {"max_tokens": self._options.max_tokens, "seed": self._seed}
        if self._options.temperature is not None:
            wanted["temperature"] = self._options.temperature
        refused = _refused[self._endpoint.url, self._options.model]
        for name, newer in INSTEAD.items():
            if name in refused:
                wanted[newer] = wanted[name]
        parameters = {name: value for name, value in wanted.items() if name not in refused}
        return {"model": self._options.model, "messages": messages, **parameters}

    def _learn_refused_parameter(self, body: Mapping[str, Json], response: Response) -> bool:
        """True if the model refuses a parameter that it can do without. It is not sent again by
        this process.
        """
        text = response.body.decode("utf-8", "replace")
        if _OF_THE_VALUE.search(text):
            return False
        for name in ("max_tokens", *INSTEAD.values(), "seed", "temperature"):
            if name in body and re.search(rf"\b{name}\b", text):
                _refused[self._endpoint.url, self._options.model].add(name)
                where = (
                    f"{self._role} endpoint {self._options.endpoint!r}, model "
                    f"{self._options.model!r}"
                )
                log.warning("%s: it refuses %s, which is left out from now on", where, name)
                return True
        return False

    def _post(self, body: Mapping[str, Json], key: str | None, timeout_s: float) -> Response:
        try:
            return http_client().request(
                "POST",
                f"{self._endpoint.url.rstrip('/')}/chat/completions",
                json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {key}"} if key else None,
                timeout_s=timeout_s,
            )
        except NoResponse as e:
            raise _Retry(f"gave no answer ({e})", may_be_away=True) from None

    def _explain(self, response: Response, key: str | None) -> str:
        if response.status in (401, 403):  # servers quote parts of the key
            return f": it needs another key than {self._endpoint.key_file or 'none'}"
        if 300 <= response.status < 400:
            return ": it has moved, and redirects are not followed"
        text = " ".join(response.body.decode("utf-8", "replace").split())
        # The key goes before the text is cut: a part of a key is also too much.
        return f": {(text.replace(key, '***') if key else text)[:400]}"

    def _key(self) -> str | None:
        try:
            return key_of(self._endpoint)
        except KeyUnreadable as e:
            raise self._failure(str(e)) from None

    def _failure(self, problem: str) -> RolloutFailure:
        return self._failed(
            f"{self._role} endpoint {self._options.endpoint!r}, model {self._options.model!r}: "
            f"{problem}"
        )


class KeyUnreadable(Exception):
    """A file that should hold a key holds none."""


def key_of(endpoint: Endpoint) -> str | None:
    """The endpoint's key; None without a key file. Raises KeyUnreadable."""
    if endpoint.key_file is None:
        return None
    try:
        key = endpoint.key_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyUnreadable(
            f"its key file {endpoint.key_file} cannot be read ({type(error).__name__})"
        ) from None
    if key and key.isascii() and key.isprintable():
        return key
    raise KeyUnreadable(f"its key file {endpoint.key_file} holds no key")


class _Retry(Exception):
    """A repeat may help. `pause_s` is how long the server asked us to wait; `may_be_away`: nothing
    came that shows that it works; `busy`: it has too many requests.
    """

    def __init__(
        self,
        problem: str,
        pause_s: float = 0.0,
        *,
        may_be_away: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(problem)
        self.pause_s = pause_s
        self.may_be_away = may_be_away
        self.busy = busy


_refused: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
"""Parameters that a model behind an address refuses."""


@cache
def http_client() -> HttpClient:
    """One client for all episodes of the process, so that connections are kept."""
    return HttpClient(max_bytes=MAX_BYTES, connect_timeout_s=CONNECT_TIMEOUT_S)


def _retry_after(response: Response) -> float:
    try:
        return min(max(0.0, float(response.retry_after)), 60.0)
    except ValueError:
        return 0.0


def _text(response: Response) -> str:
    """The reply in a chat completion, without the model's thoughts. Raises _Retry."""
    try:
        choice: dict[str, Any] = json.loads(response.body)["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _Retry("answered, but not with a chat completion") from None
    finish_reason = choice.get("finish_reason")
    problem = UNFINISHED.get(str(finish_reason))
    if problem is not None:
        raise _Retry(f"its answer {problem}")
    after_thought = _END_OF_THOUGHT.split(_THOUGHT.sub("", _spoken(content)))[-1]
    text = whole_characters(after_thought.strip())
    if not text:
        raise _Retry(f"answered nothing (finish_reason {finish_reason!r})")
    return text


def _spoken(content: Any) -> str:
    """The text of a message's content, also of a list of parts: those of text are spoken."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = []
    for part in content:
        if isinstance(part, dict) and part.get("type") in ("text", "output_text"):
            texts.append(part.get("text"))
    return "".join(text for text in texts if isinstance(text, str))
