"""Episodes that a perfect policy plays through any chat template, with or without a server.

The vocabulary is Qwen's, with the template's control tokens at ids that are free there. So one
small model, whose embedding has a row for each of these ids, serves every template: a server takes
ids and knows no template. The policy writes each ground-truth move as the template itself writes
it, and every token of it is forced.
"""

from __future__ import annotations  # array[int] is subscriptable at run time from Python 3.12 on

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollq.env import RESPOND, Action, Domain, Environment
from rollq.events import Finish, Message, VersionSpan
from rollq.job import History, Job, Json
from rollq.trajectory import Trajectory
from rollq_worker.environments import domain
from rollq_worker.episode.loop import play
from rollq_worker.episode.strategies import agent_factory
from rollq_worker.episode.text_actions import TextForm, write_action
from rollq_worker.fakes import FakeJournal
from rollq_worker.process.attempts.renderer_cache import RendererCache
from rollq_worker.protocols import Engine, Generated, SampleRequest
from rollq_worker.tokens.family_detection import common_prefix
from rollq_worker.tokens.model_family import example_call
from rollq_worker.tokens.renderer import ChatRenderer
from rollq_worker.tokens.template_messages import in_known_roles
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.users import user_factory
from tests.rollq_worker.tokens.qwen_vocabulary import qwen_spec

ROWS = 151_936
"""Rows of the embedding of Qwen's models."""
USER = "zqxjkv"
"""A user's message whose text occurs nowhere else."""
FORCED = 1000.0
"""A logit bias that leaves no other token a chance."""
CONTROL = re.compile(
    r"""<[|｜][^<>|｜\s'"{}]{1,60}[|｜]> | <\|[a-z_]+> | <[a-z_]+\|> | <\|"\|> | \[/?[A-Z][A-Z_]{2,}\]
      | <\|?[A-Z_]{3,}\|?> | </?[a-z_:]*(?:think|tool_call|tool_calls|tool_response|TOOLCALL|TOOL_RESPONSE)>
      | <(?:bos|eos|s)> | </s>
      | <(?:begin|beginning|end)_of_(?:document|sentence)> | </assistant> | <sep> | </?\w+:opensource>
      | <(?:start|end)_of_turn> | <SPECIAL_\d+> | <seed:\w+> | \]~!?b\[? | \[e~\[ | \[gMASK\] | <sop>""",  # noqa: E501
    re.VERBOSE,
)
"""Texts that are control tokens in chat templates."""
NAMED = (
    ("<start_of_turn>", {"bos_token": "<bos>", "eos_token": "<eos>"}),
    ("<|turn>", {"bos_token": "<bos>", "eos_token": "<eos>"}),
    ("<｜", {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}),
    ("<|start_header_id|>", {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    ("<|START_OF_TURN_TOKEN|>", {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}),
    ("<|return|>", {"eos_token": "<|return|>"}),
    ("<|assistant_end|>", {"bos_token": "<s>", "eos_token": "<|assistant_end|>"}),
    ("<SPECIAL_12>", {"bos_token": "<s>", "eos_token": "<SPECIAL_12>"}),
    ("<|end|>", {"bos_token": "<s>", "eos_token": "<|endoftext|>"}),
    ("<|im_end|>", {"bos_token": "<|startoftext|>", "eos_token": "<|im_end|>"}),
    ("", {"bos_token": "<s>", "eos_token": "</s>"}),
)
"""The named tokens of the first of these whose text is in the template."""


def on_qwen(
    name: str,
    template: str,
    added: Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """A template on Qwen's vocabulary with more control tokens; None: those that its text shows."""
    named = (
        config if config is not None else next(named for mark, named in NAMED if mark in template)
    )
    control = (
        added if added is not None else [token for token in CONTROL.findall(template) if token]
    )
    spec = json.loads(qwen_spec())
    tokens = spec["added_tokens"]
    known = {token["content"] for token in tokens}
    next_id = 1 + max(token["id"] for token in tokens)
    new = [
        text for text in dict.fromkeys([*control, *map(str, named.values())]) if text not in known
    ]
    assert next_id + len(new) <= ROWS, f"{name} has {len(new)} control tokens"
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens += [
        {"id": next_id + n, "content": text, "special": True} | flags for n, text in enumerate(new)
    ]
    return Tokenizer(name, json.dumps(spec).encode(), named, template)


class PerfectPolicy:
    """Writes moves as the template of a renderer writes them."""

    def __init__(
        self, renderer: ChatRenderer, form: TextForm | None, tools: Sequence[Json]
    ) -> None:
        """`form`: actions are written as text; None: as calls. `tools` are those that the template
        shows.
        """
        self.renderer = renderer
        self._form = form
        self._tools = tools
        self._think = renderer.reader.think

    def write(self, move: Action, prompt: array[int]) -> array[int]:
        """The turn that makes this move after a prompt, with its stop token."""
        tokenizer, family = self.renderer.tokenizer, self.renderer.family
        text, end = self._turn(move)
        opened, closed = self._think
        if tokenizer.decode(prompt[-12:]).rstrip().endswith(opened):
            text = f"I know what to do.\n{closed}\n\n{text}"
        if end not in family.stops:
            role = "user" if move.name == RESPOND or self._form else "tool"
            end = next(
                (stop for stop, next_role in family.header_stops.items() if next_role == role), ""
            )
        stop = tokenizer.added_tokens[end] if end else self.renderer.stop_ids[0]
        return array("I", [*tokenizer.encode(text), stop])

    def _turn(self, move: Action) -> tuple[str, str]:
        """The text of a turn, and the token with which the template ends it."""
        tokenizer, family = self.renderer.tokenizer, self.renderer.family
        said = (
            write_action(move, self._form) if self._form else str(move.arguments.get("content", ""))
        )
        turn: Message = {"role": "assistant", "content": said}
        if not self._form and move.name != RESPOND:
            turn = example_call(move.name, dict(move.arguments))
        messages: list[Message] = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": USER},
            turn,
        ]
        shown = in_known_roles(self.renderer.shown(messages), family)
        header, whole = (
            tokenizer.render(
                conversation, self._tools, add_generation_prompt=more, **family.template_kwargs
            )
            for conversation, more in ((shown[:-1], True), (shown, False))
        )
        header, whole = (text.rpartition(USER)[2] for text in (header, whole))
        text = whole[self._common(header, whole) :]
        opened, closed = map(re.escape, self._think)
        text = re.sub(rf"\A\s*(?:{opened})?\s*{closed}\s*", "", text)
        stops = [(text.find(stop), stop) for stop in family.stops if stop in text]
        ends = [(text.rfind(end), end) for end in family.template_ends if end in text]
        cut, end = min(stops, default=max(ends, default=(-1, "")))
        if said and said in text:  # some templates write more control tokens behind it
            cut = text.find(said) + len(said)
        return (text[:cut], end) if cut >= 0 else (text.rstrip("\n"), "")

    def _common(self, header: str, whole: str) -> int:
        """The number of characters with which both begin, without the first part of a control
        token.
        """
        same = common_prefix(header, whole)
        for token in self.renderer.tokenizer.added_tokens:
            at = whole.rfind(token, 0, same + len(token))
            if at >= 0 and at < same < at + len(token):
                return at
        return same


@dataclass
class ForcedEngine:
    """Samples the policy's moves one after the other from `engine`; None: without a server.

    The server samples the tokens in which templates differ: each control token, and a turn's first
    and last one. With `every` it samples all. Those between are Qwen's in each template; the server
    reads them in the next prompt.
    """

    policy: PerfectPolicy
    moves: Iterator[Action]
    engine: Engine | None = None
    every: bool = False
    requests: list[array[int]] = field(default_factory=list)
    """The prompt of each turn."""

    def room(self, prompt: int) -> int:
        return self.engine.room(prompt) if self.engine else 1 << 30

    def generate(self, request: SampleRequest) -> Generated:
        ids = request.ids
        self.requests.append(ids[:])
        turn = self.policy.write(next(self.moves), ids)
        assert len(turn) <= request.max_new_tokens
        logprobs, version, finish = array("f", [-0.5] * len(turn)), "v0", Finish.STOP
        if self.engine:
            said = ids[:]
            for at, token in enumerate(turn):
                if not (self.every or self._differs(turn, at)):
                    said.append(token)
                    continue
                forced = {**request.sampling, "logit_bias": {str(token): FORCED}}
                piece = self.engine.generate(
                    replace(request, ids=said, sampling=forced, max_new_tokens=1)
                )
                assert piece.ids == array("I", [token])
                said.append(token)
                logprobs[at] = piece.logprobs[0]
                version, finish = piece.versions[-1].version, piece.finish
        return Generated(
            ids=turn,
            logprobs=logprobs,
            versions=[VersionSpan(version, 0, len(turn))],
            finish=finish,
        )

    def _differs(self, turn: array[int], at: int) -> bool:
        return (
            at in (0, len(turn) - 1)
            or turn[at] in self.policy.renderer.tokenizer.added_tokens.values()
        )


class FewTools:
    """An environment that shows these tools alone: a template is checked with all that it shows."""

    def __init__(self, environment: Environment, names: set[str]) -> None:
        self._environment = environment
        self.tools = [tool for tool in environment.tools if tool["function"]["name"] in names]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


def play_template(
    tokenizer: Tokenizer,
    connect: Callable[[ChatRenderer], Engine] | None = None,
    *,
    env: str | Domain = "shop",
    task: int = 0,
    every: bool = False,
    **job: Any,
) -> Trajectory:
    """A whole episode as a worker plays it, of a policy that makes the task's ground-truth moves
    with their tools.

    `connect` gives the engine for a renderer's stop tokens; None: no server. `every`: the engine
    samples every token. `job`: more of the job, such as `agent` and `history`. Raises JobFailure
    for a template that is refused.
    """
    world = domain(env) if isinstance(env, str) else env
    played = Job(run="r", group="g", env=world.name, task=task, **job)
    spoken = world.task("train", task)
    environment: Any = FewTools(world.open("train", task, {}), {move.name for move in spoken.moves})
    agent = agent_factory(played.agent, played.agent_args)
    renderer = RendererCache(tokenizer).get(played, list(environment.tools))
    form = TextForm(played.agent) if agent.text_actions else None
    policy = PerfectPolicy(renderer, form, [] if form else list(environment.tools))
    engine = ForcedEngine(policy, iter(spoken.moves), connect(renderer) if connect else None, every)
    trajectory = play(
        played,
        engine=engine,
        renderer=renderer,
        environment=environment,
        user=user_factory(played.user, spoken, seed=played.seed, endpoints={}, check=lambda: None),
        journal=FakeJournal(),
    )
    if played.history is History.KEEP:
        # what was sampled stands where the next turns saw it
        assert (
            trajectory.tokens[: len(engine.requests[-1])].tolist() == engine.requests[-1].tolist()
        )
    return trajectory
