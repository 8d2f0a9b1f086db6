"""Finds the family of a chat template by rendering, never by a model's name.

A record fits when its stop token is the template's own and its reader gets back, argument for
argument, the call that the template wrote. A template that fits no record, but whose calls some
reader gets back, makes a record of its own. A template that leaves calls out fits a record that
writes them as text. Without tools no record is needed.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rollq.env import Action
from rollq.errors import JobFailure
from rollq.events import Message
from rollq.job import Json
from rollq_worker.tokens.injection_guard import any_of
from rollq_worker.tokens.known_families import families
from rollq_worker.tokens.model_family import Family, example_call
from rollq_worker.tokens.tokenizer import Tokenizer
from rollq_worker.toolcalls import NO_CALLS, readers
from rollq_worker.toolcalls.pieces import THINK

_USER = "zqxjkv"
"""A user's message whose text occurs nowhere else in a rendered conversation."""
_SYSTEM = "vbnmwq"
"""A system prompt that occurs nowhere else, either."""
_TOOL_NAME = "sample_tool"
_ARGUMENTS = {"x": 'a "b" {c}', "n": 2, "o": {"p": ["q", 1.5]}}
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
    """Whether the template lists the tools for the model."""
    try:
        return _TOOL_NAME in _render(tokenizer, [], True)
    except JobFailure:
        return True  # other renderings will fail too, with a reason


def _render(
    tokenizer: Tokenizer, turns: Sequence[Message], header: bool, tools: Sequence[Json] = (_TOOL,)
) -> str:
    """The rendering of a user's message and `turns`, with a tool, and with a system prompt where
    the template wants one.
    """
    messages: list[Message] = [{"role": "user", "content": _USER}, *turns]
    try:
        return tokenizer.render(messages, tools, add_generation_prompt=header)
    except JobFailure:
        with contextlib.suppress(JobFailure):
            messages.insert(0, {"role": "system", "content": "s"})
            return tokenizer.render(messages, tools, add_generation_prompt=header)
        raise


def family_of(tokenizer: Tokenizer, tools: bool = True) -> Family:
    """The family of a tokenizer and its template. `tools`: for conversations with tools.

    Raises JobFailure, with a remedy, for a template that cannot write tool calls or writes them in
    an unknown format; without tools, for one that does not end turns with a control token.
    """
    try:
        family, complete = _that_calls(tokenizer)
        found = family if complete else _with_written_calls(tokenizer) or family
    except JobFailure:
        written = _with_written_calls(tokenizer)
        if written is None and tools:
            raise
        found = written or _without_calls(tokenizer)
    return replace(found, system_in_user=_takes_no_system(tokenizer))


def _that_calls(tokenizer: Tokenizer) -> tuple[Family, bool]:
    """The family of a template that writes tool calls, and whether it writes nothing but one turn
    for a call.

    Raises JobFailure.
    """
    refusal: JobFailure | None = None
    rendered = False
    for text_arguments in (False, True):
        for call_id in ("call00000", f"functions.{_TOOL_NAME}:0"):
            try:
                prompt, turn = _render_call(tokenizer, text_arguments, call_id)
            except JobFailure as e:
                refusal = refusal or e
                continue
            rendered = rendered or _TOOL_NAME in turn
            for family in _candidates(tokenizer, prompt, turn):
                if _fits(family, turn):
                    return replace(family, text_arguments=text_arguments), turn.count(
                        family.stops[0]
                    ) < 2
    remedy = (
        "use a training template (`rollq doctor` names one that fits), another "
        "model, or add a format"
    )
    remedy += " (docs/formats.md)"
    template = f"the chat template of {tokenizer.name}"
    if rendered:
        known = ", ".join(name for name in readers() if name != NO_CALLS)
        raise JobFailure(
            f"{template} writes tool calls in no format that rollq reads ({known}); {remedy}"
        )
    if refusal is not None:
        raise JobFailure(
            f"{refusal}: it cannot write a tool call; correct the template or use another model"
        )
    raise JobFailure(
        f"{template} leaves an assistant's tool calls out, so nothing shows what a turn "
        f"with calls looks like; {remedy}"
    )


def _render_call(tokenizer: Tokenizer, text_arguments: bool, call_id: str) -> tuple[str, str]:
    """The end of a rendered prompt, and the text that the template writes after it for a turn with
    a call.
    """
    arguments: Json = json.dumps(_ARGUMENTS) if text_arguments else _ARGUMENTS
    prompt = _render(tokenizer, [], True).rpartition(_USER)[2]
    whole = _render(tokenizer, [example_call(_TOOL_NAME, arguments, call_id)], False).rpartition(
        _USER
    )[2]
    return prompt, text_behind(tokenizer, prompt, whole)


def text_behind(tokenizer: Tokenizer, prompt: str, whole: str) -> str:
    """What `whole` has behind the text with which both begin. No control token of either is cut in
    two.
    """
    same = common_prefix(prompt, whole)
    for start in range(max(0, same - 40), same):
        tokens = (token for token in tokenizer.added_tokens if start + len(token) > same)
        if any(
            prompt.startswith(token, start) or whole.startswith(token, start) for token in tokens
        ):
            return whole[start:]
    return whole[same:]


def common_prefix(one: str, other: str) -> int:
    """The number of characters with which both texts begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _candidates(tokenizer: Tokenizer, prompt: str, turn: str) -> Iterator[Family]:
    """The records whose tokens the vocabulary has, then one made up for each reader."""
    for family in families():
        if family.call_text is not None:
            continue
        own = (
            any(end in prompt + turn for end in (*family.stops, *family.template_ends))
            and family.call_mark in turn
        )
        if family.stops[0] in tokenizer.added_tokens and (own or family.header_stops):
            yield family
    end = _end_of_turn(tokenizer)
    if end:
        for parser in readers():
            yield Family(name=f"other ({parser})", stops=(end,), parser=parser)


def _with_written_calls(tokenizer: Tokenizer) -> Family | None:
    """The record of a template that leaves calls out, and is known by its stop token and what it
    says of tools.
    """
    with contextlib.suppress(JobFailure):
        prompt, listed = _render(tokenizer, [], True), shows_tools(tokenizer)
        end = _end_of_turn(tokenizer)
        for family in families():
            mark = family.call_text.prompt_mark if family.call_text else None
            if (
                mark is not None
                and family.stops[0] == end
                and listed == bool(mark)
                and mark in prompt
            ):
                return family
    return None


def _without_calls(tokenizer: Tokenizer) -> Family:
    """A record for conversations without tools: where turns end, and the tags of reasoning that the
    vocabulary has.

    Raises JobFailure.
    """
    end = _end_of_turn(tokenizer, tools=())
    if not end:
        _render(
            tokenizer, [{"role": "assistant", "content": "a"}], False, ()
        )  # raises where it cannot be rendered
        raise JobFailure(
            f"the chat template of {tokenizer.name} ends turns with none of the control "
            "tokens of the vocabulary, so"
            " nothing would stop a turn: correct the template, or use another model"
        )
    tags = ((name, reader.think) for name, reader in readers().items())
    named = next(
        (name for name, think in tags if think != THINK and think[1] in tokenizer.added_tokens),
        NO_CALLS,
    )
    parser = NO_CALLS if THINK[1] in tokenizer.added_tokens else named
    return Family(
        name="other (no calls)", stops=(end,), parser=parser, reply_roles=frozenset({"user"})
    )


def _takes_no_system(tokenizer: Tokenizer) -> bool:
    """Whether the template refuses a system prompt or leaves it out."""
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


def _end_of_turn(tokenizer: Tokenizer, tools: Sequence[Json] = (_TOOL,)) -> str:
    """The control token with which the template ends an assistant's turn, whether more follows or
    not; "" if it has none.

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
    own = control.findall(last[: common_prefix(last, more)])
    named = [token for token in own if tokenizer.added_tokens[token] in tokenizer.eos_ids]
    return next(iter([*named, *own[-1:], *control.findall(more)]), "")


def _fits(family: Family, turn: str) -> bool:
    """Whether the family's reader gets the call back."""
    cut = max(turn.rfind(end) for end in (*family.stops, *family.template_ends))
    if cut >= 0 and _TOOL_NAME not in turn[cut:]:
        turn = turn[:cut]
    read = readers()[family.parser](turn, None, [_TOOL])
    return list(read.calls) == [Action(_TOOL_NAME, _ARGUMENTS)] and not read.errors
