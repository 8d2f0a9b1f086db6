"""A user played by a language model behind an OpenAI-compatible endpoint.

The job names the endpoint and the model. The worker knows the address and the key. The invariants: every error of the
endpoint is a UserFailure, and no key gets into a message, a repr or the cause of an error. It knows the task's
instruction, and nothing of tools, rewards or the expected answers.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from rollq.errors import JobFailure, UserFailure
from rollq.job import Json
from rollq.sampling import number
from rollq.settings import Endpoint
from rollq_worker.http_client import HttpClient, NoResponse, Response
from rollq_worker.protocols import STOP_MARKER
from rollq_worker.waiting import backoff, wait

BACKOFF_S = (0.5, 8.0)
"""First and longest pause in seconds between two requests, before jitter."""
MAX_RETRY_AFTER_S = 60.0
CONNECT_TIMEOUT_S = 10.0
SPARE_S = 10.0
MAX_BYTES = 1 << 20
"""Longest answer in bytes; a longer one is not a chat message."""
RETRIED = frozenset({408, 425, 429})
"""Statuses below 500 after which a repeat may help."""

UNFINISHED = {
    "length": "was cut short: the user's max_tokens is too low for it",
    "content_filter": "was cut short by a filter",
    "tool_calls": "calls a tool, of which a user has none",
}
"""Answers that are not complete, by finish_reason. After half a message the policy would be graded for what it was
never told."""

GREETING = "Hello! How can I help you today?"
"""The first message that the simulated customer gets."""

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
class OpenAIUserOptions:
    """What a job may say about its user besides the kind. Raises JobFailure."""

    endpoint: str
    """Name of the endpoint. The worker knows its address."""
    model: str
    temperature: float | None = None
    """Sampling temperature; None: the endpoint's default."""
    max_tokens: int = 1024
    """Most tokens of one reply, reasoning included."""
    timeout_s: float = 60.0
    """Seconds for one request. All requests for one reply take at most (retries + 1) times that."""
    retries: int = 4

    def __post_init__(self) -> None:
        for name, valid in (
            ("endpoint", isinstance(self.endpoint, str) and bool(self.endpoint)),
            ("model", isinstance(self.model, str) and bool(self.model)),
            ("temperature", self.temperature is None or (number(self.temperature) and 0 <= self.temperature <= 2)),
            ("max_tokens", type(self.max_tokens) is int and self.max_tokens >= 1),
            ("timeout_s", number(self.timeout_s) and 0 < self.timeout_s <= 3600),
            ("retries", type(self.retries) is int and 0 <= self.retries <= 100),
        ):
            if not valid:
                raise JobFailure(f"user {name} cannot be {getattr(self, name)!r}")


def read_options(options: Mapping[str, Json]) -> OpenAIUserOptions:
    """The options in a job's user. Raises JobFailure."""
    known = [part.name for part in fields(OpenAIUserOptions)]
    if unknown := sorted(str(name) for name in options if name not in known):
        raise JobFailure(f"user kind 'openai' takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    if missing := [name for name in ("endpoint", "model") if name not in options]:
        raise JobFailure(f"user kind 'openai' needs {' and '.join(missing)}")
    return OpenAIUserOptions(**options)


class OpenAIUser:
    """Implements protocols.User. One object per episode."""

    def __init__(
        self,
        instruction: str,
        options: OpenAIUserOptions,
        endpoint: Endpoint,
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
        """Seconds for all requests for one reply, with some to spare."""
        return self._options.timeout_s * (self._options.retries + 1) + SPARE_S

    def open(self) -> str:
        text = self._say(GREETING)
        if STOP_MARKER in text:  # the policy would be graded for a task that it was never told
            raise self._failure(f"said {STOP_MARKER} before it said anything")
        return text

    def reply(self, message: str) -> str:
        return self._say(message)

    def recall(self, heard: str | None, said: str) -> None:
        """Adds an exchange to the conversation. Roles are swapped: to the simulator the agent is the user."""
        heard = GREETING if heard is None else heard
        self._messages += [{"role": "user", "content": heard}, {"role": "assistant", "content": said}]

    def _say(self, heard: str) -> str:
        text = self._complete([*self._messages, {"role": "user", "content": heard}])
        self.recall(heard, text)
        return text

    def _complete(self, messages: list[dict[str, str]]) -> str:
        """Ask until there is a reply, the retries are spent, or the time for all of them is over."""
        tries = self._options.retries + 1
        deadline = time.monotonic() + self._options.timeout_s * tries
        for attempt in range(tries):
            self._check()
            try:
                return self._ask(messages, min(self._options.timeout_s, deadline - time.monotonic()))
            except _Retry as e:
                problem, pause_s = str(e), e.pause_s
            if pause_s is None:
                pause_s = backoff(attempt, *BACKOFF_S)
            if attempt + 1 == tries or time.monotonic() + pause_s >= deadline:
                break
            wait(pause_s, self._check)
        raise self._failure(f"{problem} (tried {attempt + 1} times)")

    def _ask(self, messages: list[dict[str, str]], timeout_s: float) -> str:
        """One request. Raises _Retry if a repeat may help, else UserFailure."""
        body: dict[str, Json] = {
            "model": self._options.model,
            "messages": messages,
            "max_tokens": self._options.max_tokens,
            "seed": self._seed,
        }
        if self._options.temperature is not None:
            body["temperature"] = self._options.temperature
        key = self._key()
        try:
            response = _http_client().request(
                "POST",
                f"{self._endpoint.url.rstrip('/')}/chat/completions",
                json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {key}"} if key else None,
                timeout_s=timeout_s,
                total=True,
            )
        except NoResponse as e:
            raise _Retry(f"no answer ({e})") from None
        if response.status == 200:
            return _text(response)
        if response.status >= 500 or response.status in RETRIED:
            raise _Retry(f"answered {response.status}", _retry_after(response))
        raise self._failure(f"answered {response.status}{self._explain(response, key)}")

    def _explain(self, response: Response, key: str | None) -> str:
        if response.status in (401, 403):  # servers quote parts of the key
            return f": it needs another key than {self._endpoint.key_file or 'none'}"
        if 300 <= response.status < 400:
            return ": it has moved, and redirects are not followed"
        text = " ".join(response.body.decode("utf-8", "replace").split())
        # The key goes before the text is cut: a part of a key is also too much.
        return f": {(text.replace(key, '***') if key else text)[:400]}"

    def _key(self) -> str | None:
        if self._endpoint.key_file is None:
            return None
        try:
            key = self._endpoint.key_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"its key file {self._endpoint.key_file} cannot be read ({type(error).__name__})"
        else:
            if key and key.isascii() and key.isprintable():
                return key
            problem = f"its key file {self._endpoint.key_file} holds no key"
        raise self._failure(problem)

    def _failure(self, problem: str) -> UserFailure:
        return UserFailure(f"user endpoint {self._options.endpoint!r}, model {self._options.model!r}: {problem}")


class _Retry(Exception):
    """A repeat may help. `pause_s` is how long the server asked us to wait."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


@cache
def _http_client() -> HttpClient:
    """One client for all episodes of the process, so that connections are kept."""
    return HttpClient(max_bytes=MAX_BYTES, connect_timeout_s=CONNECT_TIMEOUT_S, environment=True)


def _retry_after(response: Response) -> float | None:
    try:
        return min(max(0.0, float(response.retry_after)), MAX_RETRY_AFTER_S)
    except ValueError:
        return None


def _text(response: Response) -> str:
    """The reply in a chat completion, without the model's thoughts. Raises _Retry."""
    try:
        choice: dict[str, Any] = json.loads(response.body)["choices"][0]
        content = choice["message"]["content"]
    except (ValueError, LookupError, TypeError):
        raise _Retry("answered, but not with a chat completion") from None
    finish_reason = choice.get("finish_reason")
    if (problem := UNFINISHED.get(str(finish_reason))) is not None:
        raise _Retry(f"its answer {problem}")
    text = content if isinstance(content, str) else ""
    # Some templates open the thought in the prompt, so that only its end is in the reply.
    text = _THOUGHT.sub("", text).rpartition("</think>")[2].strip()
    if not text:
        raise _Retry(f"answered nothing (finish_reason {finish_reason!r})")
    return text
