"""Formats that write a call, or a list of calls, as JSON behind a tag: Hermes' (also of Qwen2.5,
Qwen3 and Granite 4), Cohere's, Granite 3's, Nemotron's, Apertus', Apriel's, GigaChat's, K2
Horizon's and Intern-S1's; MiniMax M1's calls follow one another.

    <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>
    <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>
    <|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
    <TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>
    <|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>
    <tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>
    <|function_call|>{"name": "f", "arguments": {"a": 1}}
    <|action_start|><|plugin|>{"name": "f", "parameters": {"a": 1}}<|action_end|>

White space is free. A turn may end without the last end tag, because SGLang's parsers take such a
call. Cohere also marks what a turn says, with `<|START_RESPONSE|>` or `<|START_TEXT|>`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import NotJson, skip, strict_json
from rollq_worker.toolcalls.call_object import NotACall, call_id, call_of
from rollq_worker.toolcalls.pieces import (
    THINK,
    BrokenCall,
    Kind,
    Piece,
    Reader,
    block_reader,
    broken,
    unclosed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLists:
    """The tags of one format, and the form of a call in its list."""

    tags: tuple[str, str]
    """The end tag is "" in formats without one."""
    call: Callable[[Json, str], Action]
    """Reads a call from an item and `form`. Raises NotACall."""
    form: str
    """The right way to write calls, told to the policy."""
    stops: bool = False
    """True if the end tag ends the turn, and so is not part of its text."""
    lines: bool = False
    """True if calls may follow one another without a list."""
    id: str = ""
    """The key of a call's id; "" if calls have none."""
    frames: tuple[str, ...] = ()
    """Control tokens around the content of a turn."""
    think: tuple[str, str] = THINK

    def reader(self) -> Reader:
        return block_reader({self.tags[0]: self.block}, self.think, self.frames)

    def block(self, text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
        """Reads the block that opens at `start`, JSON first: an end tag inside a string of it is
        text.
        """
        try:
            items, end = self._items(text, start + len(self.tags[0]))
        except BrokenCall as e:
            return [broken(text, start, e.at, self.tags, str(e))]
        calls: list[Action] = []
        errors: list[str] = []
        for item in items:
            try:
                calls.append(self.call(item, self.form))
            except NotACall as e:
                errors.append(str(e))
        if errors:
            return [broken(text, start, end, self.tags, *errors)]
        ids = tuple(call_id(item, self.id) for item in items) if self.id else ()
        close = self.tags[1]
        if not close:
            return [Piece(Kind.CALL, start, end, calls=tuple(calls), ids=ids)]
        after = skip(text, end)
        if text.startswith(close, after):
            return [Piece(Kind.CALL, start, after + len(close), calls=tuple(calls), ids=ids)]
        if after < len(text):
            error = f"There is text behind the JSON of the tool calls. {self.form}"
            return [broken(text, start, end, self.tags, error)]
        marked = tuple(calls) if self.stops else unclosed(calls)
        return [Piece(Kind.CALL, start, after, calls=marked, ids=ids)]

    def _items(self, text: str, at: int) -> tuple[Sequence[Json], int]:
        """Reads the items of the list at `at`, and returns them and the end of the JSON. Raises
        BrokenCall.
        """
        items: list[Json] = []
        while not items or (self.lines and text.startswith("{", skip(text, at))):
            try:
                value, problem, at = strict_json(text, at)
            except NotJson as e:
                raise BrokenCall(f"The tool call is {e} {self.form}", at) from None
            if problem:
                raise BrokenCall(problem, at)
            items += value if isinstance(value, list) else [value]
            if not items:
                raise BrokenCall(f"The list of tool calls is empty. {self.form}", at)
        return items, at


def _cohere(value: Json, form: str) -> Action:
    if not isinstance(value, dict):
        return call_of(value, form)
    if "tool_name" not in value:
        raise NotACall(f'The tool call has no "tool_name". {form}')
    return call_of({**value, "name": value["tool_name"]}, form)


def _by_name(value: Json, form: str) -> Action:
    """The call that is an object with one key, the tool's name."""
    if not isinstance(value, dict) or len(value) != 1:
        raise NotACall(
            f"The tool call is not an object with the tool's name as its only key. {form}"
        )
    [(name, arguments)] = value.items()
    return call_of({"name": name, "arguments": arguments}, form)


_OBJECTS = '{"name": ..., "arguments": {...}}'


def _intern_s1(tag: str) -> JsonLists:
    return JsonLists(
        tags=(tag, "<|action_end|>"),
        call=call_of,
        form='Write {"name": ..., "parameters": {...}} between the action tokens.',
    )


READERS = {
    "hermes": JsonLists(
        tags=("<tool_call>", "</tool_call>"),
        call=call_of,
        form='Write {"name": ..., "arguments": {...}} between the tool_call tags.',
    ).reader(),
    "cohere": JsonLists(
        tags=("<|START_ACTION|>", "<|END_ACTION|>"),
        call=_cohere,
        form='Write [{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}] between '
        "the action tokens.",
        id="tool_call_id",
        frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        think=("<|START_THINKING|>", "<|END_THINKING|>"),
    ).reader(),
    "granite3": JsonLists(
        tags=("<|tool_call|>", ""),
        call=call_of,
        form='Write <|tool_call|>[{"name": ..., "arguments": {...}}].',
    ).reader(),
    "nemotron_v2": JsonLists(
        tags=("<TOOLCALL>", "</TOOLCALL>"),
        call=call_of,
        form='Write <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>.',
    ).reader(),
    "apertus": JsonLists(
        tags=("<|tools_prefix|>", "<|tools_suffix|>"),
        call=_by_name,
        form="Write [{name: {...}}], each call an object with the tool's name as its key, "
        "between the tools tokens.",
        stops=True,
        think=("<|inner_prefix|>", "<|inner_suffix|>"),
    ).reader(),
    "apriel": JsonLists(
        tags=("<tool_calls>", "</tool_calls>"),
        call=call_of,
        form=f"Write [{_OBJECTS}] between the tool_calls tags.",
        frames=("[END FINAL RESPONSE]",),
        think=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ).reader(),
    "minimax_m1": JsonLists(
        tags=("<tool_calls>", "</tool_calls>"),
        call=call_of,
        form=f"Write {_OBJECTS}, one a line, between the tool_calls tags.",
        lines=True,
    ).reader(),
    "gigachat3": JsonLists(
        tags=("<|message_sep|>\n\nfunction call<|role_sep|>\n", ""),
        call=call_of,
        form=f"Write {_OBJECTS} as a function call.",
        frames=("<|message_sep|>\n\n",),
    ).reader(),
    "gigachat31": JsonLists(
        tags=("<|function_call|>", ""), call=call_of, form=f"Write <|function_call|>{_OBJECTS}."
    ).reader(),
    "k2_horizon_json": JsonLists(
        tags=("<ifm|tool_call>", "</ifm|tool_call>"),
        call=call_of,
        form=f"Write {_OBJECTS} between the tool_call tags.",
        frames=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        think=("<ifm|think>", "</ifm|think>"),
    ).reader(),
    "intern_s1": block_reader(
        {
            tag: _intern_s1(tag).block
            for tag in ("<|action_start|> <|plugin|>", "<|action_start|><|plugin|>")
        }
    ),
}
