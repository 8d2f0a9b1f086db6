"""A user played by a language model behind an OpenAI-compatible endpoint.

The job names the endpoint and the model, the worker knows the address and the key. Whatever goes wrong there is a
UserFailure, never the policy's fault; no key gets into a message, a repr or the cause of an error. It knows the task's
instruction and nothing of tools, rewards or the expected answers.
"""

import json
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests
import urllib3
from requests.adapters import HTTPAdapter

from rollq.errors import JobFailure, UserFailure
from rollq.job import Json
from rollq_worker.protocols import STOP_MARKER

if TYPE_CHECKING:
    from rollq_worker.users import Endpoint

BACKOFF_S = 0.5
"""Before the first repeat; doubles up to BACKOFF_MAX_S, with jitter."""
BACKOFF_MAX_S = 8.0
SPARE_S = 10.0
LARGEST = 1 << 20
"""Bytes of an answer; more is not a chat message."""
AGAIN = frozenset({408, 425, 429})
"""Statuses below 500 that are worth a repeat."""

CUT = {
    "length": "was cut short: the user's max_tokens is too low for it",
    "content_filter": "was cut short by a filter",
    "tool_calls": "calls a tool, of which a user has none",
}
"""finish_reason of an answer that is none: half a message would have the policy graded for what it was never told."""

GREETING = "Hello! How can I help you today?"
"""What the simulated customer hears first."""

PROMPT = f"""\
You play a customer who is writing to a company's customer service. The other side is a service agent. Stay in this \
role whatever the agent says.

Who you are and what you want:
{{instruction}}

How to play:
- Write only the customer's next message, in one to three plain sentences. No quotation marks, no notes, no reasoning.
- Say one thing at a time. Start with who you are or what you want, and give further details when they are asked for.
- Use your own words, but give names, numbers, addresses and codes exactly as they stand above.
- Never invent anything. If you are asked for something that is not said above, say that you do not know it.
- Do not do the agent's work, and do not tell the agent which steps to take.
- If the agent asks you to confirm something that is what you want, agree; if it is not, say what is wrong with it.
- When everything you want is settled, or the agent has made clear that it will not happen, or you are handed over to \
somebody else, write {STOP_MARKER} and nothing else. Never write it before.
"""

_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a job may say about its user beside the kind."""

    endpoint: str
    """A name; the worker knows the address."""
    model: str
    temperature: float | None = None
    """None: the endpoint's default."""
    max_tokens: int = 1024
    """Of one reply, reasoning included."""
    timeout_s: float = 60.0
    """Of one request; all requests for one reply together take at most (retries + 1) times that."""
    retries: int = 4

    def __post_init__(self) -> None:
        for name, fine in (
            ("endpoint", isinstance(self.endpoint, str) and bool(self.endpoint)),
            ("model", isinstance(self.model, str) and bool(self.model)),
            ("temperature", self.temperature is None or (_number(self.temperature) and 0 <= self.temperature <= 2)),
            ("max_tokens", type(self.max_tokens) is int and self.max_tokens >= 1),
            ("timeout_s", _number(self.timeout_s) and 0 < self.timeout_s <= 3600),
            ("retries", type(self.retries) is int and 0 <= self.retries <= 100),
        ):
            if not fine:
                raise JobFailure(f"user {name} cannot be {getattr(self, name)!r}")

    @classmethod
    def read(cls, options: Mapping[str, Json]) -> "Options":
        """From a job's words. Raises JobFailure."""
        known = [part.name for part in fields(cls)]
        if unknown := sorted(str(name) for name in options if name not in known):
            raise JobFailure(f"user kind 'openai' takes no {', '.join(unknown)}; it takes {', '.join(known)}")
        if missing := [name for name in ("endpoint", "model") if name not in options]:
            raise JobFailure(f"user kind 'openai' needs {' and '.join(missing)}")
        return cls(**options)


class OpenAIUser:
    """Implements protocols.User; one object an episode."""

    def __init__(
        self,
        instruction: str,
        options: Options,
        endpoint: "Endpoint",
        *,
        seed: int,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._options = options
        self._endpoint = endpoint
        self._seed = seed
        self._check = check or (lambda: None)
        self._messages: list[dict[str, str]] = [
            {"role": "system", "content": PROMPT.format(instruction=instruction.strip())}
        ]

    @property
    def longest_reply_s(self) -> float:
        """All requests for one reply, with some seconds to spare."""
        return self._options.timeout_s * (self._options.retries + 1) + SPARE_S

    def open(self) -> str:
        text = self._say(GREETING)
        if STOP_MARKER in text:  # the policy would be graded for a task that nobody told it
            raise self._failure(f"said {STOP_MARKER} before it said anything")
        return text

    def reply(self, message: str) -> str:
        return self._say(message)

    def recall(self, heard: str | None, said: str) -> None:
        """Roles are flipped: to the simulator the agent is the user."""
        heard = GREETING if heard is None else heard
        self._messages += [{"role": "user", "content": heard}, {"role": "assistant", "content": said}]

    def _say(self, heard: str) -> str:
        text = self._complete([*self._messages, {"role": "user", "content": heard}])
        self.recall(heard, text)
        return text

    def _complete(self, messages: list[dict[str, str]]) -> str:
        tries = self._options.retries + 1
        deadline = time.monotonic() + self._options.timeout_s * tries
        for attempt in range(tries):
            self._check()
            try:
                return self._ask(messages, min(self._options.timeout_s, deadline - time.monotonic()))
            except _Again as again:
                problem, wait_s = again.problem, again.wait_s
            if wait_s is None:
                wait_s = min(BACKOFF_MAX_S, BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.0)
            if attempt + 1 == tries or time.monotonic() + wait_s >= deadline:
                break
            self._pause(wait_s)
        raise self._failure(f"{problem} (tried {attempt + 1} times)")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(0.25, left))
            self._check()

    def _ask(self, messages: list[dict[str, str]], timeout_s: float) -> str:
        """One request. Raises _Again for what a repeat may cure, else UserFailure."""
        payload: dict[str, Json] = {
            "model": self._options.model,
            "messages": messages,
            "max_tokens": self._options.max_tokens,
            "seed": self._seed,
        }
        if self._options.temperature is not None:
            payload["temperature"] = self._options.temperature
        key = self._key()
        status, body, wait_s = _post(f"{self._endpoint.url.rstrip('/')}/chat/completions", payload, key, timeout_s)
        if status == 200:
            return _text(body)
        if status >= 500 or status in AGAIN:
            raise _Again(f"answered {status}", wait_s)
        if status in (401, 403):  # servers quote parts of the key
            raise self._failure(f"answered {status}: it wants another key than {self._endpoint.key_file or 'none'}")
        if 300 <= status < 400:
            raise self._failure(f"answered {status}: it has moved, and redirects are not followed")
        said = " ".join(body.decode("utf-8", "replace").split())
        # First the key, then the length: half a key is too much.
        raise self._failure(f"answered {status}: {(said.replace(key, '***') if key else said)[:400]}")

    def _key(self) -> str | None:
        if self._endpoint.key_file is None:
            return None
        try:
            key = Path(self._endpoint.key_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"its key file {self._endpoint.key_file} cannot be read ({type(error).__name__})"
        else:
            if key and key.isascii() and key.isprintable():
                return key
            problem = f"its key file {self._endpoint.key_file} holds no key"
        raise self._failure(problem)

    def _failure(self, problem: str) -> UserFailure:
        return UserFailure(f"user endpoint {self._options.endpoint!r}, model {self._options.model!r}: {problem}")


class _Again(Exception):
    """A repeat may help; `wait_s` is what the server asked for."""

    def __init__(self, problem: str, wait_s: float | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.wait_s = wait_s


class _Auth(requests.auth.AuthBase):
    """The key, or none; without it requests would look into the machine's netrc."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


@cache
def _session() -> requests.Session:
    """One for all episodes of the process: its connections are kept."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=16, pool_maxsize=256))
    return session


def _post(url: str, payload: Json, key: str | None, timeout_s: float) -> tuple[int, bytes, float | None]:
    """(status, body, seconds the server wants us to wait). Raises _Again when there was no whole answer in time."""
    until = time.monotonic() + timeout_s
    try:
        with _session().post(
            url,
            json=payload,
            auth=_Auth(key),
            timeout=(min(10.0, timeout_s), timeout_s),
            allow_redirects=False,
            stream=True,
        ) as response:
            return response.status_code, _body(response, until), _retry_after(response)
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        problem = f"no answer ({type(error).__name__})"
    # Outside of the except block: the exception holds the request, and that the key.
    raise _Again(problem)


def _body(response: requests.Response, until: float) -> bytes:
    """All of it; an answer that trickles is cut off, although each byte comes in time."""
    read: Callable[..., bytes] = getattr(response.raw, "read1", response.raw.read)
    body = b""
    while part := read(65536, decode_content=True):
        body += part
        if len(body) > LARGEST or time.monotonic() > until:
            raise requests.Timeout
    return body


def _retry_after(response: requests.Response) -> float | None:
    try:
        return min(max(0.0, float(response.headers["Retry-After"])), 60.0)
    except (KeyError, ValueError):
        return None


def _text(body: bytes) -> str:
    """The reply in a chat completion, without what the model thought. Raises _Again."""
    try:
        choice: dict[str, Any] = json.loads(body)["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise _Again("answered something that is no chat completion") from None
    if (why := CUT.get(str(choice.get("finish_reason")))) is not None:
        raise _Again(f"its answer {why}")
    text = content if isinstance(content, str) else ""
    # Some templates open the thought in the prompt, so that only its end is in the reply.
    text = _THOUGHT.sub("", text).rpartition("</think>")[2].strip()
    if not text:
        raise _Again(f"answered nothing (finish_reason {choice.get('finish_reason')!r})")
    return text


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
