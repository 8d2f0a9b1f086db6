"""Formats that write a call as a name and JSON between tags: DeepSeek's, Kimi K2's and Solar's with
a section around the calls, Functionary v3.1's without.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>
    <|tool_calls_section_end|>

    <|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|>

    <function=f>{"a": 1}</function><function=g>{}</function>

DeepSeek V3 and R1 write `function<｜tool▁sep｜>f`, a line break and the arguments in a fenced block
of JSON instead. A turn may end without the section's end token, because SGLang's parsers take such
calls. Kimi's id, `functions.f:0`, holds the tool's name and the number of the call in the
conversation. The token that ends Solar's section ends the turn; before it, thoughts and words are
messages of their own.
"""  # noqa: E501

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import skip
from rollq_worker.toolcalls.call_object import read_arguments
from rollq_worker.toolcalls.pieces import (
    THINK,
    BrokenCall,
    Kind,
    Open,
    Piece,
    Reader,
    block_reader,
    broken,
    unclosed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionFormat:
    """The control tokens of one format."""

    section: tuple[str, str] = ("", "")
    """The end token is "" where it ends the turn. Without a section both are."""
    call: tuple[str, str]
    heads: tuple[re.Pattern[str], ...]
    """Patterns of the text between a call's first token and its arguments. Groups: `name`; `id`
    where calls have one; `fence` where the arguments are fenced.
    """
    no_head: str
    """Error for the policy when no head fits."""
    frames: tuple[str, ...] = ()
    """Control tokens around the content of a turn."""
    think: tuple[str, str] = THINK

    def reader(self) -> Reader:
        """The reader of this format. Calls are read outside of a section too."""
        openers: dict[str, Open] = {self.call[0]: lambda *place: [self._call(*place)]}
        if self.section[0]:
            openers[self.section[0]] = self._section
        return block_reader(openers, self.think, self.frames)

    def _section(self, text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
        """The calls of the section that opens at `start`, with the control tokens around them as
        frame.
        """
        begin, end = self.section
        at = skip(text, start + len(begin))
        pieces = [Piece(Kind.FRAME, start, at)]
        while text.startswith(self.call[0], at):
            pieces.append(self._call(text, at, tools))
            at = skip(text, pieces[-1].end)
            if at > pieces[-1].end:
                pieces.append(Piece(Kind.FRAME, pieces[-1].end, at))
        if len(pieces) == 1:
            error = "There is no tool call in the section of tool calls."
            return [broken(text, start, at, (begin, end), error)]
        if end and text.startswith(end, at):
            return [*pieces, Piece(Kind.FRAME, at, at + len(end))]
        if end and not any(piece.errors for piece in pieces):
            _mark_unclosed(pieces, turn_ended=at == len(text))
        return pieces

    def _call(self, text: str, start: int, tools: Sequence[Json]) -> Piece:
        inside = start + len(self.call[0])
        matches = (pattern.match(text, inside) for pattern in self.heads)
        head = next(filter(None, matches), None)
        if head is None:
            return broken(text, start, inside, self.call, self.no_head)
        name = head["name"]
        groups = head.groupdict()
        try:
            arguments, end = read_arguments(text, head.end(), name)
        except BrokenCall as e:
            return broken(text, start, e.at, self.call, str(e))
        end = skip(text, end)
        if groups.get("fence") and text.startswith(groups["fence"], end):
            end = skip(text, end + len(groups["fence"]))
        if not text.startswith(self.call[1], end):
            tail = "has text behind its arguments."
            if end == len(text):
                tail = "was not closed with its end token."
            return broken(text, start, end, self.call, f"The call of {name[:80]!r} {tail}")
        end += len(self.call[1])
        ids = (groups["id"],) if "id" in groups else ()
        return Piece(Kind.CALL, start, end, calls=(Action(name, arguments),), ids=ids)


def _mark_unclosed(pieces: list[Piece], turn_ended: bool) -> None:
    """Marks a section without its end token: its last call if the turn ended there, else an error
    in its first piece.
    """
    if not turn_ended:
        error = "The section of tool calls was not closed with its end token."
        pieces[0] = replace(pieces[0], errors=(error,))
        return
    last = max(n for n, piece in enumerate(pieces) if piece.calls)
    pieces[last] = replace(pieces[last], calls=unclosed(pieces[last].calls))


READERS = {
    "deepseek_v31": SectionFormat(
        section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        call=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        heads=(
            re.compile(r"\s*function<｜tool▁sep｜>\s*(?P<name>[^\s<]+)\s*(?P<fence>```)json\s*"),
            re.compile(r"\s*(?P<name>[^\s<]+)\s*<｜tool▁sep｜>"),
        ),
        no_head="The tool call has no function name.",
    ).reader(),
    "kimi_k2": SectionFormat(
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=("<|tool_call_begin|>", "<|tool_call_end|>"),
        heads=(
            re.compile(
                r"\s*(?P<id>(?:functions\.)?(?P<name>[^\s<:]+):\d+)\s*<\|tool_call_argument_begin\|>"
            ),
        ),
        no_head="The id of the tool call cannot be read. Write functions.name:number "
        "between the tokens.",
    ).reader(),
    "solar": SectionFormat(
        section=("<|tool_calls|>", ""),
        call=("<|tool_call:begin|>", "<|tool_call:end|>"),
        heads=(
            re.compile(
                r"\s*(?P<id>[\w-]+)\s*<\|tool_call:name\|>\s*(?P<name>[^\s<]+)\s*<\|tool_call:args\|>"
            ),
        ),
        no_head="The head of the tool call cannot be read. Write "
        "id<|tool_call:name|>name<|tool_call:args|>, then JSON.",
        frames=("<|content|>", "<|end|>", "<|begin|>assistant"),
        think=("<|think|>", "<|end|>"),
    ).reader(),
    "functionary_v31": SectionFormat(
        call=("<function=", "</function>"),
        heads=(re.compile(r"(?P<name>[^\s<>](?:[^<>\n]*[^\s<>])?)>"),),
        no_head="The tool call has no function name. Write <function=name>{...}</function>.",
    ).reader(),
}
