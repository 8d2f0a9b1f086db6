"""One chat template: messages to the text that a model was trained on.

It renders as transformers' `apply_chat_template` does, without importing it. Four things differ:
the date never changes, fields of messages that are None are left out, a template may append to
lists, and it never sees a list or mapping of the caller, only copies. The sandbox keeps a template
from files and from Python's own objects, not from using up time or memory. It knows no token ids.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from rollq.errors import JobFailure, SettingsError
from rollq.events import Message
from rollq.job import GIVEN_TO_TEMPLATES, Json

TODAY = datetime(2025, 1, 1)
"""The date for templates that write one. The real date would differ between the samples of a group,
and between a journal and an episode that is resumed from it the next day.
"""
DEFAULT, FOR_TOOLS = "default", "tool_use"
"""The names of a model's templates that are used, the second one for conversations with tools."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys under which a message may hold its reasoning."""
_ASKS = ("defined", "undefined", "default", "d")
"""Tests and filters that are made for variables that may be missing."""


class ChatTemplate:
    """A chat template with arguments for it. Threads may share it."""

    def __init__(self, name: str, template: Json, named: Mapping[str, str]) -> None:
        """`template` is the Jinja text, or texts by name; `named` are tokens that it may show.
        Raises SettingsError.
        """
        self._name = name
        texts = template if isinstance(template, dict) else {DEFAULT: template}
        self._texts = {key: str(texts[key]) for key in (DEFAULT, FOR_TOOLS) if key in texts}
        self._compiled = {key: _compile(name, text) for key, text in self._texts.items()}
        self._named = named
        self.fixed_arguments: Mapping[str, Json] = {}
        """The arguments with which it always renders."""

    @cached_property
    def arguments(self) -> frozenset[str]:
        """The names of the arguments that it reads."""
        return frozenset().union(*map(_arguments, self._texts.values())) - GIVEN_TO_TEMPLATES

    def with_arguments(self, arguments: Mapping[str, Json]) -> "ChatTemplate":
        """The template that always renders with these arguments.

        Raises JobFailure for a name that it does not read.
        """
        for name in arguments:
            if name not in self.arguments:
                raise JobFailure(
                    f"template_kwargs: the chat template of {self._name} {self._unknown(name)}"
                )
        template = copy(self)
        template.fixed_arguments = dict(arguments)
        return template

    def _unknown(self, name: str) -> str:
        if not self.arguments:
            return f"does not read {name!r}: it takes no arguments"
        close = difflib.get_close_matches(name, self.arguments, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        return f"does not read {name!r}; it reads {', '.join(sorted(self.arguments))}{meant}"

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Json],
    ) -> str:
        """The text. The arguments with which it always renders win over `kwargs`. Raises
        JobFailure.
        """
        try:
            return self._choose(tools).render(
                **self._named,
                **_copy({**kwargs, **self.fixed_arguments}),
                messages=[_with_reasoning(_copy(message)) for message in messages],
                tools=_copy(tools),
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as e:  # the template is foreign code: it may raise anything
            roles = " ".join(str(message.get("role")) for message in messages)
            raise JobFailure(
                f"the chat template of {self._name} cannot render [{roles}]: "
                f"{type(e).__name__}: {e}"
            ) from e

    def _choose(self, tools: Sequence[Json] | None) -> jinja2.Template:
        key = DEFAULT
        if tools is not None and FOR_TOOLS in self._compiled:
            key = FOR_TOOLS
        if key not in self._compiled:
            raise ValueError(
                "there are several templates, and none is for conversations without tools"
            )
        return self._compiled[key]


def _with_reasoning(message: Message) -> Message:
    """The message without fields that are None, and with its reasoning under each key that
    templates read.
    """
    fields = {key: value for key, value in message.items() if value is not None}
    reasoning = next((fields[key] for key in _REASONING if key in fields), None)
    if reasoning is None:
        return fields
    return {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, with which some templates mark the model's text. It writes its body."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> jinja2.Environment:
    """A sandbox that is not the immutable one: Kimi-K2-Thinking's template appends to lists, and
    all that it gets are copies.
    """
    environment = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json  # Jinja's own escapes what HTML would misread
    environment.globals.update(raise_exception=_refuse, strftime_now=TODAY.strftime)
    return environment


_ENVIRONMENT = _environment()


def _arguments(text: str) -> set[str]:
    """The variables that a template reads before it sets them, or tests for their presence.

    Jinja also counts those that a template sets in one branch only; many templates have a dozen.
    """
    tree = _ENVIRONMENT.parse(text)
    variables = _Variables()
    variables.visit(tree, frozenset())
    return jinja2.meta.find_undeclared_variables(tree) & variables.read


class _Variables:
    """Collects the variables that a template reads before it sets them."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._stored: set[str] = set()

    def visit(self, node: jinja2.nodes.Node, parameters: frozenset[str]) -> None:
        """`parameters` are those of the macros around the node."""
        if isinstance(node, jinja2.nodes.Name):
            self._visit_name(node, parameters)
            return
        if isinstance(node, jinja2.nodes.Macro | jinja2.nodes.CallBlock):
            parameters |= {parameter.name for parameter in node.args}
        if isinstance(node, jinja2.nodes.Test | jinja2.nodes.Filter) and node.name in _ASKS:
            variable = node.node
            if isinstance(variable, jinja2.nodes.Name) and variable.name not in parameters:
                self.read.add(variable.name)
        targets: tuple[str, ...] = ()  # an assignment reads its value before it sets its target
        if isinstance(node, jinja2.nodes.Assign | jinja2.nodes.For):
            targets = node.fields[:1]
        for child in node.iter_child_nodes(exclude=targets):
            self.visit(child, parameters)
        for child in node.iter_child_nodes(only=targets):
            self.visit(child, parameters)

    def _visit_name(self, node: jinja2.nodes.Name, parameters: frozenset[str]) -> None:
        if node.ctx == "store":
            self._stored.add(node.name)
        elif node.ctx == "load" and node.name not in self._stored | parameters:
            self.read.add(node.name)


def _compile(name: str, text: str) -> jinja2.Template:
    try:
        return _ENVIRONMENT.from_string(text)
    except jinja2.TemplateSyntaxError as e:
        raise SettingsError(
            f"tokenizer {name}: the chat template is not valid Jinja: line {e.lineno}: {e}"
        ) from e
