"""Finds the family of a chat template by rendering, never by a model's name.

A record fits when its stop token is the template's own and its reader gets back, argument for
argument, the call that the template wrote, and its reasoning as reasoning. A template that fits no
record, but whose calls some reader gets back, makes a record of its own. A template that leaves
calls out fits a record that writes them as text. Without tools no record is needed.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from rollq.env import Action
from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.protocols import ReadTurn
from rollq_worker.tokens.injection_guard import any_of
from rollq_worker.tokens.known_families import families
from rollq_worker.tokens.model_family import REASONING, Family, example_call
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import NO_CALLS, readers_for
from rollq_worker.toolcalls.pieces import THINK, Reader

_USER = "zqxjkv"
"""A user's message whose text occurs nowhere else in a rendered conversation."""
_SYSTEM = "vbnmwq"
"""A system prompt that occurs nowhere else, either."""
_TOOL_NAME = "sample_tool"
_REASONING = "wqzjkx"
"""Reasoning whose text occurs nowhere else, either."""
_PLAIN_ARGUMENTS = {"x": 'a "b" {c}', "n": 2, "o": {"p": ["q", 1.5]}}
_ARGUMENTS = {**_PLAIN_ARGUMENTS, "x": '\na "b" {c}\n'}
"""Arguments with line breaks at the ends of a value, which tell two forms of markup apart. Some
templates trim them.
"""
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "sample",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "string", "description": "x"},
                "n": {"type": "integer", "description": "n"},
                "o": {"type": "object", "description": "o"},
            },
            "required": ["x"],
        },
    },
}


def shows_tools(tokenizer: Tokenizer) -> bool:
    """True if the template lists the tools for the model."""
    try:
        return _TOOL_NAME in _render(tokenizer, [], True)
    except JobFailure:
        return True  # other renderings will fail too, with a reason


def _render(
    tokenizer: Tokenizer, turns: Sequence[Message], header: bool, tools: Sequence[Json] = (_TOOL,)
) -> str:
    """The rendering of a user's message and `turns`, with a tool. Where the template wants them,
    with a system prompt, or with a field for reasoning in each turn.
    """
    messages: list[Message] = [{"role": "user", "content": _USER}, *turns]
    try:
        return tokenizer.render(messages, tools, add_generation_prompt=header)
    except JobFailure:
        with_system = [{"role": "system", "content": "s"}, *messages]
        for fuller in (with_system, _with_reasoning(messages), _with_reasoning(with_system)):
            with contextlib.suppress(JobFailure):
                return tokenizer.render(fuller, tools, add_generation_prompt=header)
        raise


def _with_reasoning(messages: Sequence[Message]) -> list[Message]:
    """The messages, with empty reasoning in each turn that has none."""
    return [
        {REASONING: "", **message} if message["role"] == "assistant" else message
        for message in messages
    ]


def family_of(tokenizer: Tokenizer, tools: bool = True) -> Family:
    """The family of a tokenizer and its template. `tools`: for conversations with tools.

    Raises JobFailure, with a remedy, for a template that cannot write tool calls or writes them in
    an unknown format; without tools, for one that does not end turns with a control token.
    """
    try:
        family, is_complete = _that_calls(tokenizer)
        if not is_complete:
            family = _with_written_calls(tokenizer) or family
    except _UnknownFormat:
        if tools:
            raise
        family = _without_calls(tokenizer)
    except JobFailure:
        with_text = _with_written_calls(tokenizer)
        if with_text is None and tools:
            raise
        family = with_text or _without_calls(tokenizer)
    return replace(
        family,
        system_in_user=_takes_no_system(tokenizer),
        one_system=not _takes_several_systems(tokenizer),
        wants_reasoning=_wants_reasoning(tokenizer),
    )


class _UnknownFormat(JobFailure):
    """The template writes calls, and no reader gets them back."""


def _that_calls(tokenizer: Tokenizer) -> tuple[Family, bool]:
    """The family of a template that writes tool calls, and whether it writes nothing but one turn
    for a call.

    Raises JobFailure.
    """
    readers = readers_for(tokenizer.added_tokens)
    refusal: JobFailure | None = None
    rendered = False
    for call in _example_calls():
        try:
            prompt, turn = _render_turn(tokenizer, call.message)
        except JobFailure as e:
            refusal = refusal or e
            continue
        rendered = rendered or _TOOL_NAME in turn
        for family in _candidates(tokenizer, prompt, turn, readers):
            reader = readers[family.parser]
            reads_call = _reads_call(reader, family, turn, call)
            if reads_call and _reads_reasoning(tokenizer, reader, family, call):
                is_complete = turn.count(family.stops[0]) < 2
                return replace(family, text_arguments=call.text_arguments), is_complete
    raise _no_family(tokenizer, rendered, refusal, readers)


class _ExampleCall(NamedTuple):
    """A turn with one call, in one of the forms that templates take."""

    message: Message
    arguments: Mapping[str, Json]
    text_arguments: bool


def _example_calls() -> Iterator[_ExampleCall]:
    for arguments in (_ARGUMENTS, _PLAIN_ARGUMENTS):
        for text_arguments in (False, True):
            shown: Json = json.dumps(arguments) if text_arguments else arguments
            for call_id in ("call00000", f"functions.{_TOOL_NAME}:0"):
                message = example_call(_TOOL_NAME, shown, call_id)
                yield _ExampleCall(message, arguments, text_arguments)


def _no_family(
    tokenizer: Tokenizer,
    rendered: bool,
    refusal: JobFailure | None,
    readers: Iterable[str],
) -> JobFailure:
    """The error for a template that fits no record. `rendered`: it writes calls."""
    remedy = (
        "use a training template (`rollq doctor` names one that fits), another model, or add a "
        "format (docs/formats.md)"
    )
    template = f"the chat template of {tokenizer.name}"
    if rendered:
        formats = ", ".join(name for name in readers if name != NO_CALLS)
        return _UnknownFormat(
            f"{template} writes tool calls in no format that rollq reads ({formats}); {remedy}"
        )
    if refusal is not None:
        return JobFailure(
            f"{refusal}: it cannot write a tool call; correct the template or use another model"
        )
    return JobFailure(
        f"{template} leaves an assistant's tool calls out, so nothing shows what a turn "
        f"with calls looks like; {remedy}"
    )


def _render_turn(tokenizer: Tokenizer, turn: Message) -> tuple[str, str]:
    """The end of a rendered prompt, and the text that the template writes after it for a turn."""
    prompt = _render(tokenizer, [], True).rpartition(_USER)[2]
    conversation = _render(tokenizer, [turn], False).rpartition(_USER)[2]
    return prompt, text_behind(tokenizer, prompt, conversation)


def text_behind(tokenizer: Tokenizer, prompt: str, text: str) -> str:
    """The rest of `text` behind its common prefix with `prompt`. No control token of either is cut
    in two.
    """
    same = common_prefix(prompt, text)
    for start in range(max(0, same - 40), same):
        for token in tokenizer.added_tokens:
            is_cut = start + len(token) > same
            if is_cut and (prompt.startswith(token, start) or text.startswith(token, start)):
                return text[start:]
    return text[same:]


def common_prefix(one: str, other: str) -> int:
    """The number of characters with which both texts begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _candidates(
    tokenizer: Tokenizer, prompt: str, turn: str, readers: Iterable[str]
) -> Iterator[Family]:
    """The records whose tokens the vocabulary has, then one made up for each reader."""
    for family in families():
        if family.call_text is not None:
            continue
        if family.stops[0] not in tokenizer.added_tokens:
            continue
        ends = (*family.stops, *family.template_ends)
        shows_end = any(end in prompt + turn for end in ends)
        if family.header_stops or (shows_end and family.call_mark in turn):
            yield family
    end = _end_of_turn(tokenizer)
    if end:
        for parser in readers:
            yield Family(name=f"other ({parser})", stops=(end,), parser=parser)


def _with_written_calls(tokenizer: Tokenizer) -> Family | None:
    """The record of a template that leaves calls out, and is known by its stop token and what it
    says of tools.
    """
    with contextlib.suppress(JobFailure):
        prompt = _render(tokenizer, [], True)
        listed = shows_tools(tokenizer)
        end = _end_of_turn(tokenizer)
        for family in families():
            if family.call_text is None or family.stops[0] != end:
                continue
            mark = family.call_text.prompt_mark
            if listed == bool(mark) and mark in prompt:
                return family
    return None


def _without_calls(tokenizer: Tokenizer) -> Family:
    """A record for conversations without tools: where turns end, and the tags of reasoning that the
    vocabulary has.

    Raises JobFailure.
    """
    end = _end_of_turn(tokenizer, tools=())
    if not end:
        # Raises a better error if the template cannot be rendered.
        _render(tokenizer, [{"role": "assistant", "content": "a"}], False, ())
        raise JobFailure(
            f"the chat template of {tokenizer.name} ends turns with none of the control "
            "tokens of the vocabulary, so nothing would stop a turn: correct the template, or use "
            "another model"
        )
    parser = NO_CALLS
    if THINK[1] not in tokenizer.added_tokens:
        for name, reader in readers_for(tokenizer.added_tokens).items():
            if reader.think != THINK and reader.think[1] in tokenizer.added_tokens:
                parser = name
                break
    return Family(
        name="other (no calls)", stops=(end,), parser=parser, reply_roles=frozenset({"user"})
    )


def _takes_no_system(tokenizer: Tokenizer) -> bool:
    """True if the template refuses a system prompt or leaves it out."""
    messages: list[Message] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _USER},
    ]
    try:
        if _SYSTEM in tokenizer.render(messages, add_generation_prompt=True):
            return False
    except JobFailure:
        pass
    try:
        return _USER in tokenizer.render(messages[1:], add_generation_prompt=True)
    except JobFailure:
        return False


def _wants_reasoning(tokenizer: Tokenizer) -> bool:
    """True if the template refuses a turn that has no field for reasoning."""
    messages: list[Message] = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": "a"},
    ]
    try:
        tokenizer.render(messages)
    except JobFailure:
        with contextlib.suppress(JobFailure):
            tokenizer.render(_with_reasoning(messages))
            return True
    return False


def _takes_several_systems(tokenizer: Tokenizer) -> bool:
    """True if the template writes a second system message, behind the first and behind a turn."""
    first: Message = {"role": "system", "content": _SYSTEM}
    second: Message = {"role": "system", "content": _SYSTEM[::-1]}
    user: Message = {"role": "user", "content": _USER}
    turn: Message = {"role": "assistant", "content": "a"}
    for messages in ([first, second, user], [first, user, turn, second, user]):
        try:
            text = tokenizer.render(messages, add_generation_prompt=True)
        except JobFailure:
            return False
        if _SYSTEM not in text or _SYSTEM[::-1] not in text:
            return False
    return True


def _end_of_turn(tokenizer: Tokenizer, tools: Sequence[Json] = (_TOOL,)) -> str:
    """The control token with which the template ends an assistant's turn, both at the end and
    before a reply. "" if it has none.

    Of several it is the one that the model's files name.
    """
    word = _USER[::-1]
    turns: list[Message] = [
        {"role": "assistant", "content": word},
        {"role": "user", "content": "u"},
    ]
    try:
        last, more = (
            _render(tokenizer, shown, False, tools).rpartition(word)[2]
            for shown in (turns[:1], turns)
        )
    except JobFailure:
        return ""
    control = any_of(filter(None, tokenizer.added_tokens))
    shared = control.findall(last[: common_prefix(last, more)])
    named = [token for token in shared if tokenizer.added_tokens[token] in tokenizer.eos_ids]
    candidates = [*named, *shared[-1:], *control.findall(more)]
    return candidates[0] if candidates else ""


def _reads_call(reader: Reader, family: Family, turn: str, call: _ExampleCall) -> bool:
    """True if the family's reader gets the call back."""
    read = _read(reader, family, turn)
    return list(read.calls) == [Action(_TOOL_NAME, call.arguments)] and not read.errors


def _reads_reasoning(
    tokenizer: Tokenizer, reader: Reader, family: Family, call: _ExampleCall
) -> bool:
    """True if the family's reader takes the reasoning that the template writes before a call for
    reasoning, or the template writes none.
    """
    try:
        _, turn = _render_turn(tokenizer, {**call.message, REASONING: _REASONING})
    except JobFailure:
        return True
    if _REASONING not in turn:
        return True
    read = _read(reader, family, turn)
    return _REASONING in read.reasoning and _REASONING not in read.content


def _read(reader: Reader, family: Family, turn: str) -> ReadTurn:
    """Reads a rendered turn without its end token."""
    cut = max(turn.rfind(end) for end in (*family.stops, *family.template_ends))
    if cut >= 0 and _TOOL_NAME not in turn[cut:]:
        turn = turn[:cut]
    return reader(turn, None, [_TOOL])
