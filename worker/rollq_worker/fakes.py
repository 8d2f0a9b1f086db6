"""Fakes of every protocol, for tests of agent loops, environments and renderers: no network, no
model, no Redis.

`FakeEngine` samples a fixed list of texts; `FakeRenderer` makes each character a token, so ids are
easy to read.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollq.env import RESPOND, STOP_MARKER, Action, Grade, Observation, User
from rollq.events import Event, Finish, Message, VersionSpan
from rollq.images import references, text_of
from rollq.job import Json
from rollq.trajectory_extras import Extra
from rollq_worker.protocols import (
    Generated,
    PromptImages,
    ReadTurn,
    Routing,
    SampleRequest,
    Scores,
    Scoring,
    TurnRefused,
)

END = 0
"""FakeRenderer's stop token."""
REFUSED = "\x07"
"""A text that FakeRenderer's template refuses in a turn."""


def char_ids(text: str) -> array[int]:
    """The ids of a text: one per character, its code point."""
    return array("I", map(ord, text))


def fake_experts(ids: array[int], routing: Routing) -> Extra:
    """A row for each of the ids from the routing's start on but for the last. It follows from the
    id and its place.
    """
    shape = routing.shape
    rows = range(routing.start, len(ids) - 1)
    places = range(shape.layers * shape.top_k)
    return shape.part(
        shape.pack((ids[row] + 7 * row + place) % shape.experts for row in rows for place in places)
    )


def fake_score(id: int) -> float:
    """A logprob that follows from the id, exact in 32 bits."""
    return -(id % 64 + 1) / 64


def fake_scores(ids: array[int], scoring: Scoring) -> Scores:
    """`fake_score` of each token behind the scoring's start; the likeliest are 0, 1, ..."""
    scored = ids[scoring.start + 1 :]
    likeliest = range(scoring.top_k)
    return Scores(
        array("d", map(fake_score, scored)),
        [array("I", likeliest) for _ in scored if scoring.top_k],
        [array("d", map(fake_score, likeliest)) for _ in scored if scoring.top_k],
    )


@dataclass
class FakeEngine:
    """Samples the texts one after the other, and then the last one again and again. The stop token
    follows unless the text is cut. Prompts are scored by `fake_score`.
    """

    texts: Sequence[str]
    version: str = "v0"
    context: int = 1 << 30
    interrupts: int = 0
    """Number of replies that are aborted after their first token."""
    requests: list[array[int]] = field(default_factory=list)
    """The ids of every request, as sent."""
    replies: list[array[int]] = field(default_factory=list)
    images: list[PromptImages | None] = field(default_factory=list)
    """The images of every request."""
    _sampled: int = 0
    _rest: array[int] | None = None

    def room(self, prompt: int) -> int:
        return self.context - prompt

    def generate(self, request: SampleRequest) -> Generated:
        request.check()
        ids = request.ids
        routing = request.routing
        room = min(request.max_new_tokens, self.room(len(ids)))
        if room <= 0:
            return Generated(ids=array("I"), logprobs=array("f"), versions=(), finish=Finish.LENGTH)
        self.requests.append(array("I", ids))
        self.images.append(request.images)
        if self._rest is None:
            text = self.texts[min(self._sampled, len(self.texts) - 1)]
            self._rest = char_ids(text) + array("I", [END])
            self._sampled += 1
        cut = room
        if self.interrupts:
            self.interrupts -= 1
            cut = 1
        out = self._rest[:cut]
        self._rest = self._rest[cut:] or None
        if self._rest is None:
            finish = Finish.STOP
        else:
            finish = Finish.ABORT if cut == 1 < room else Finish.LENGTH
        if finish is Finish.LENGTH:
            self._rest = None
        self.replies.append(out)
        experts = None
        if routing is not None:
            experts = fake_experts(ids + out, routing)
        return Generated(
            routed_experts=experts,
            scores=fake_scores(ids, request.scoring) if request.scoring else None,
            ids=out,
            logprobs=array("f", [-0.5] * len(out)),
            versions=[VersionSpan(self.version, 0, len(out))],
            finish=finish,
        )


class FakeRenderer:
    """A renderer for texts in which a JSON object with name and arguments (and id) is a call, and a
    list of them several calls. Other JSON is malformed.
    """

    stop_ids: Sequence[int] = (END,)
    vocab_size: int = 0x110000
    image_token: int = ord("#")
    """One for each pixel."""
    roles: frozenset[str] = frozenset({"tool", "user"})

    def open(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        return char_ids(
            "".join(f"[{m['role']}]{self._content(m)}" for m in messages) + "[assistant]"
        )

    def image_length(self, width: int, height: int) -> int:
        return width * height

    def _content(self, message: Message) -> str:
        squares = sum(
            self.image_length(image.width, image.height) for image in references([message])
        )
        return text_of(message["content"]) + chr(self.image_token) * squares

    def read(self, ids: array[int]) -> ReadTurn:
        text = "".join(chr(i) for i in ids if i != END)
        if not text.startswith(("{", "[")):
            return ReadTurn(text)
        try:
            calls = json.loads(text)
            calls = calls if isinstance(calls, list) else [calls]
            actions = [Action(call["name"], call["arguments"]) for call in calls]
            return ReadTurn("", actions, call_ids=[call.get("id", "") for call in calls])
        except (ValueError, KeyError, TypeError) as e:
            return ReadTurn(text, (), [f"not a call: {e}"])

    def is_end(self, id: int) -> bool:
        return id == END

    def close(self, message: Message, replies: Sequence[Message]) -> int:
        return END

    def call_id(self, id: str, name: str, n: int) -> str:
        return id or f"call_{n}"

    def replying_roles(self, stop: int) -> frozenset[str]:
        return self.roles

    def complaint_role(self, stop: int | None) -> str:
        return "tool"

    def bridge(
        self, message: Message, replies: Sequence[Message], stop: int | None = None
    ) -> array[int]:
        return char_ids(
            "".join(f"[{m['role']}]{self._content(m)}" for m in replies) + "[assistant]"
        )

    def rewritten(
        self,
        messages: Sequence[Message],
        sampled: array[int],
        replies: Sequence[Message],
        tools: Sequence[Json],
    ) -> array[int] | None:
        ids = self.reopen([*messages, *replies], tools)
        if any(reply["role"] == "user" for reply in replies):
            return ids
        return None

    def reopen(self, messages: Sequence[Message], tools: Sequence[Json]) -> array[int]:
        if any(
            REFUSED in message["content"] for message in messages if message["role"] == "assistant"
        ):
            raise TurnRefused(f"{REFUSED} is refused")
        return self.open(messages, tools)


@dataclass
class FakeUser:
    """Returns the lines one after the other, then STOP_MARKER."""

    lines: Sequence[str] = ("hello",)
    heard: list[str] = field(default_factory=list)

    def open(self) -> str:
        return self.lines[0]

    def reply(self, message: str) -> str:
        self.heard.append(message)
        if len(self.heard) < len(self.lines):
            return self.lines[len(self.heard)]
        return STOP_MARKER

    def recall(self, heard: str | None, reply: str) -> None:
        if heard is not None:
            self.heard.append(heard)


@dataclass
class FakeEnvironment:
    """Echoes tool calls; the reward is 1.0 if `add` was called."""

    tools: Sequence[Json] = (
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
    )
    system_prompt: str = "policy"
    actions: list[Action] = field(default_factory=list)
    user: User | None = None

    def reset(self, user: User) -> str:
        self.user = user
        return user.open()

    def step(self, action: Action) -> Observation:
        self.actions.append(action)
        if action.name == RESPOND:
            assert self.user is not None
            text = self.user.reply(action.arguments["content"])
            return Observation(text, STOP_MARKER in text)
        return Observation(json.dumps(dict(action.arguments)))

    def grade(self) -> Grade:
        return Grade(1.0 if any(a.name == "add" for a in self.actions) else 0.0)


@dataclass
class FakeJournal:
    """Keeps the events in a list. `check` raises `stop` after `limit` events."""

    events: list[Event] = field(default_factory=list)
    stop: Exception | None = None
    limit: int = 1 << 30

    def append(self, event: Event) -> None:
        self.events.append(event)

    def hold_back(self, event: Event) -> None:
        self.append(event)

    def write(self) -> None:
        pass

    def check(self) -> None:
        if self.stop is not None and len(self.events) >= self.limit:
            raise self.stop
