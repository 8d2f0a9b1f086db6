"""Calls as a name, then keys and values in tags; white space between tags is free. GLM-4.5 to 5 and
Laguna write them. Hunyuan marks every tag and puts a section around the calls, as K2 Horizon does.
LongCat has longer names.

    <tool_call>f                          <tool_calls:opensource>
    <arg_key>a</arg_key>                  <tool_call:opensource>f<tool_sep:opensource>
    <arg_value>1</arg_value>              <arg_key:opensource>a</arg_key:opensource>
    </tool_call>                          <arg_value:opensource>1</arg_value:opensource>
                                          </tool_call:opensource></tool_calls:opensource>

A value is taken as it stands; its type is what the tool's schema says. K2 Horizon can write a type,
too, which decides where the schema allows several. Hunyuan 4 has no tag behind the name, and its
mark is another one in each checkpoint.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollq.env import Action
from rollq.job import Json
from rollq_worker.text.strict_json import skip
from rollq_worker.toolcalls.pieces import THINK, BrokenCall, Reader, block_reader, call_block, first
from rollq_worker.toolcalls.schema_types import is_tool, parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAndValues:
    """The tags of one format."""

    prefix: str = ""
    """The beginning of every tag's name."""
    mark: str = ""
    """The suffix of every tag's name."""
    names_types: bool = False
    """True if a tag between a key and its value names the value's type."""
    behind_name: str = ""
    """The tag between a name and its arguments."""
    frames: tuple[str, ...] = ()
    """Tags around the calls of a turn. Calls are read without them too."""
    think: tuple[str, str] = THINK

    def reader(self) -> Reader:
        tags = self._tags("tool_call")
        open_tag, _ = tags
        return block_reader({open_tag: call_block(tags, self._call)}, self.think, self.frames)

    def _tags(self, name: str) -> tuple[str, str]:
        full_name = f"{self.prefix}{name}{self.mark}"
        return f"<{full_name}>", f"</{full_name}>"

    def _form(self) -> str:
        key = "key".join(self._tags("arg_key"))
        if self.names_types:
            key += "type".join(self._tags("arg_type"))
        value = "value".join(self._tags("arg_value"))
        name = f"the name and {self.behind_name}" if self.behind_name else "the name"
        return f"Write {name}, then {key}{value}, between the tool_call tags."

    def _call(self, text: str, at: int, tools: Sequence[Json]) -> tuple[Sequence[Action], int]:
        end = text.find("<", at)
        if end < 0:
            problem = f"The tool call is cut off: it has no end tag. {self._form()}"
            raise BrokenCall(problem, len(text))
        name = text[at:end].strip()
        if not name or any(char.isspace() for char in name):
            raise BrokenCall(f"The tool call has no function name. {self._form()}", end)
        if "{" in name and not is_tool(tools, name):
            raise BrokenCall(f"The tool call writes its arguments as JSON. {self._form()}", end)
        if not text.startswith(self.behind_name, end):
            problem = f"The name {name[:80]!r} of the call has no {self.behind_name} behind it."
            raise BrokenCall(problem, end)
        at = skip(text, end + len(self.behind_name))
        arguments, at = self._arguments(text, at, name, tools)
        _, close = self._tags("tool_call")
        if text.startswith(close, at):
            return [Action(name, arguments)], at + len(close)
        if at == len(text):
            raise BrokenCall("The tool call was not closed with its end tag.", at)
        raise BrokenCall(f"The call of {name[:80]!r} holds more than arguments. {self._form()}", at)

    def _arguments(
        self, text: str, at: int, name: str, tools: Sequence[Json]
    ) -> tuple[dict[str, Json], int]:
        """Reads the arguments of a call of `name`. Returns them and their end."""
        schema = parameters(tools, name)
        arguments: dict[str, Json] = {}
        key_tags = self._tags("arg_key")
        value_tags = self._tags("arg_value")
        open_key, _ = key_tags
        open_value, close_value = value_tags
        openers = (open_key, open_value)
        while text.startswith(open_key, at):
            inside = at + len(open_key)
            key, at = _inside(text, at, key_tags, openers)
            kind, at = self._type(text, at)
            has_value = text.startswith(open_value, at)
            if key is None or not key.strip() or kind is None or not has_value:
                parts = "a key, a type and a value" if self.names_types else "a key and a value"
                problem = f"An argument of {name[:60]!r} is not {parts}."
                raise BrokenCall(f"{problem} {self._form()}", inside)
            value, end = _inside(text, at, value_tags, openers)
            if value is None:
                problem = f"The argument {key[:80]!r} of the call of {name[:80]!r} was not closed"
                raise BrokenCall(f"{problem} with {close_value}.", inside)
            if key in arguments:
                raise BrokenCall(f"The tool call names the argument {key[:80]!r} twice.", end)
            arguments[key], problem = schema.read(key, value, kind)
            if problem:
                raise BrokenCall(
                    f"The argument {key[:80]!r} of the call of {name[:80]!r} {problem}", end
                )
            at = end
        return arguments, at

    def _type(self, text: str, at: int) -> tuple[str | None, int]:
        """The type that the tag at `at` names, and the place behind it: "" in formats without such
        tags, None where the tag is missing or open.
        """
        if not self.names_types:
            return "", at
        tags = self._tags("arg_type")
        open_type, _ = tags
        open_value, _ = self._tags("arg_value")
        if not text.startswith(open_type, at):
            return None, at
        kind, at = _inside(text, at, tags, (open_type, open_value))
        if kind is None:
            return None, at
        return kind.partition("[")[0].strip(), at  # of array[string], say, the outer type


def _inside(
    text: str, at: int, tags: tuple[str, str], openers: tuple[str, ...]
) -> tuple[str | None, int]:
    """The text between `tags` that open at `at`, and the place behind them and white space.

    None if one of `openers` or the end of the turn comes before the end tag.
    """
    open_tag, close_tag = tags
    inside = at + len(open_tag)
    end = first(text, inside, close_tag, *openers)
    if end is None or end[0] != close_tag:
        return None, at
    return text[inside : end.start()], skip(text, end.end())


def _hunyuan(mark: str, behind_name: str = "") -> Reader:
    return KeysAndValues(
        mark=mark,
        behind_name=behind_name,
        frames=(f"<tool_calls{mark}>", f"</tool_calls{mark}>"),
        think=(f"<think{mark}>", f"</think{mark}>"),
    ).reader()


def hunyuan4(tokens: Iterable[str]) -> Mapping[str, Reader]:
    """The readers of Hunyuan 4 by name, for the marks that a vocabulary with these tokens has."""
    marks = filter(None, map(_MARKED.fullmatch, tokens))
    return {f"hunyuan4{match[1]}": _hunyuan(match[1]) for match in marks}


def _k2_horizon(*, names_types: bool) -> Reader:
    return KeysAndValues(
        prefix="ifm|",
        names_types=names_types,
        frames=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        think=("<ifm|think>", "</ifm|think>"),
    ).reader()


_MARKED = re.compile(r"<tool_calls(:[^\s>]+)>")
READERS = {
    "glm45": KeysAndValues().reader(),
    "hunyuan3": _hunyuan(":opensource", "<tool_sep:opensource>"),
    "longcat": KeysAndValues(
        prefix="longcat_", think=("<longcat_think>", "</longcat_think>")
    ).reader(),
    "k2_horizon": _k2_horizon(names_types=False),
    "k2_horizon_typed": _k2_horizon(names_types=True),
}
