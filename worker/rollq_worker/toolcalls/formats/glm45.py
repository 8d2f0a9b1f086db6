"""Calls as a name, then keys and values in tags; white space between tags is free. GLM-4.5 to 5
write them so, and Laguna; Hunyuan 3 marks every tag, and stands a section around the calls.

    <tool_call>f                          <tool_calls:opensource>
    <arg_key>a</arg_key>                  <tool_call:opensource>f<tool_sep:opensource>
    <arg_value>1</arg_value>              <arg_key:opensource>a</arg_key:opensource>
    </tool_call>                          <arg_value:opensource>1</arg_value:opensource>
                                          </tool_call:opensource></tool_calls:opensource>

A value is taken as it stands; its type is what the tool's schema says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollq.env import Action
from rollq.job import Json
from rollq_worker.strict_json import skip
from rollq_worker.toolcalls.pieces import THINK, Kind, Piece, Reader, block_reader, broken, first
from rollq_worker.toolcalls.schema_types import parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysAndValues:
    """The tags of one format."""

    mark: str = ""
    """What stands at the end of every tag's name."""
    behind_name: str = ""
    """The tag between a name and its arguments."""
    frames: tuple[str, ...] = ()
    """Tags around the calls of a turn. Calls are read without them too."""
    think: tuple[str, str] = THINK

    def reader(self) -> Reader:
        return block_reader({self._tags("tool_call")[0]: self._block}, self.think, self.frames)

    def _tags(self, name: str) -> tuple[str, str]:
        return f"<{name}{self.mark}>", f"</{name}{self.mark}>"

    def _form(self) -> str:
        key, value = self._tags("arg_key"), self._tags("arg_value")
        name = f"the name{self.behind_name and f' and {self.behind_name}'}"
        return (
            f"Write {name}, then {key[0]}key{key[1]}{value[0]}value{value[1]}, between "
            "the tool_call tags."
        )

    def _block(self, text: str, start: int, tools: Sequence[Json]) -> Sequence[Piece]:
        tags = self._tags("tool_call")
        call, error, end = self._call(text, start + len(tags[0]), tags[1], tools)
        if call is None:
            return [broken(text, start, end, tags, error)]
        return [Piece(Kind.CALL, start, end, calls=(call,))]

    def _call(
        self, text: str, at: int, close: str, tools: Sequence[Json]
    ) -> tuple[Action | None, str, int]:
        """The call, or what is wrong with it; and where reading ended."""
        end = text.find("<", at)
        name = text[at : end if end >= 0 else len(text)].strip()
        if end < 0:
            return None, f"The tool call is cut off: it has no end tag. {self._form()}", len(text)
        if not name or any(char.isspace() for char in name):
            return None, f"The tool call has no function name. {self._form()}", end
        if not text.startswith(self.behind_name, end):
            return (
                None,
                f"The name {name!r} of the tool call has no {self.behind_name} behind it.",
                end,
            )
        arguments, error, at = self._arguments(
            text, skip(text, end + len(self.behind_name)), name, tools
        )
        if error:
            return None, error, at
        if text.startswith(close, at):
            return Action(name, arguments), "", at + len(close)
        if at == len(text):
            return None, "The tool call was not closed with its end tag.", at
        return None, f"The call of {name!r} holds more than arguments. {self._form()}", at

    def _arguments(
        self, text: str, at: int, name: str, tools: Sequence[Json]
    ) -> tuple[dict[str, Json], str, int]:
        """The arguments at `at` of a call of `name`, what is wrong with them ("": nothing), and
        where they end.
        """
        known, arguments = parameters(tools, name), dict[str, Json]()
        (key_tag, unkey_tag), (value_tag, unvalue_tag) = (
            self._tags("arg_key"),
            self._tags("arg_value"),
        )
        while text.startswith(key_tag, at):
            inside = at + len(key_tag)
            unkey = first(text, inside, unkey_tag, key_tag, value_tag)
            if unkey is not None and unkey[0] == unkey_tag:
                at = skip(text, unkey.end())
            is_value = text.startswith(value_tag, at)
            unvalue = (
                first(text, at + len(value_tag), unvalue_tag, key_tag, value_tag)
                if is_value
                else None
            )
            if (
                unkey is None
                or unvalue is None
                or not (key := text[inside : unkey.start()]).strip()
            ):
                return (
                    {},
                    f"An argument of the call of {name!r} is not a key and a value. {self._form()}",
                    inside,
                )
            if unvalue[0] != unvalue_tag:
                return (
                    {},
                    f"The argument {key!r} of the call of {name!r} was not closed "
                    f"with {unvalue_tag}.",
                    inside,
                )
            if key in arguments:
                return {}, f"The tool call names the argument {key!r} twice.", unvalue.start()
            arguments[key], error = known.read(key, text[at + len(value_tag) : unvalue.start()])
            if error:
                return {}, f"The argument {key!r} of the call of {name!r} {error}", unvalue.start()
            at = skip(text, unvalue.end())
        return arguments, "", at


GLM45 = KeysAndValues().reader()
_HUNYUAN = ":opensource"
HUNYUAN3 = KeysAndValues(
    mark=_HUNYUAN,
    behind_name=f"<tool_sep{_HUNYUAN}>",
    frames=(f"<tool_calls{_HUNYUAN}>", f"</tool_calls{_HUNYUAN}>"),
    think=(f"<think{_HUNYUAN}>", f"</think{_HUNYUAN}>"),
).reader()
