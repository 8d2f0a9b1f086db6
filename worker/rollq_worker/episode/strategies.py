"""Agent strategies: the system prompt, and how a sampled turn becomes actions.

A strategy sees texts and values, never tokens.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import ClassVar

from rollq.env import RESPOND, Action
from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.episode.text_actions import TextForm, read_action, system_prompt
from rollq_worker.protocols import ReadTurn

SINGLE_TOOL = (
    "In each turn, either make exactly one tool call or write to the user, never both. Wait for "
    "the result of a tool call before you make the next one."
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The response to a turn."""

    actions: Sequence[Action] = ()
    """Actions to take, in order. Calls are the first ones of the turn. Empty when the turn cannot
    be acted on.
    """
    errors: Sequence[str] = ()
    """Errors of the turn, for the policy."""


class Calls(StrEnum):
    """Treatment of several tool calls in one turn."""

    FIRST = "first"
    """Carries out the first, as tau-bench's agent does. The others stay in the tokens and are
    counted.
    """
    ALL = "all"
    """Carries them out one after the other, until the episode ends."""
    REFUSE = "refuse"
    """Carries out none: the turn counts as malformed."""


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """Tool calls act on the environment; a turn without one speaks to the user."""

    single_tool: bool = False
    """Append the single-tool instruction to the system prompt."""
    calls: Calls = Calls.FIRST
    examples: Sequence[str] = ()
    """Conversations shown after the environment's system prompt: tau-bench's few-shot agent."""
    text_actions: ClassVar[bool] = False
    """True if actions are text and their results users' messages; else both are the chat template's
    tool calls.
    """

    @property
    def several(self) -> bool:
        """True if several calls of one turn may be carried out."""
        return self.calls is Calls.ALL

    def system_prompt(self, rules: str, tools: Sequence[Json]) -> str:
        """The system prompt for an environment whose own is `rules`."""
        shown = (f"Example {n}:\n{example}" for n, example in enumerate(self.examples, 1))
        return "\n\n".join((rules, *shown, *([SINGLE_TOOL] if self.single_tool else [])))

    def act(self, turn: ReadTurn, tools: Collection[str]) -> Decision:
        """The response to a turn; `tools` are the names that the environment has."""
        if not turn.calls:
            if turn.errors:
                return Decision((), turn.errors)
            return Decision((Action(RESPOND, {"content": turn.content}),))
        if not tools:
            return Decision(
                (), (*turn.errors, "There are no tools here: write to the user in plain text.")
            )
        if len(turn.calls) > 1 and self.calls is Calls.REFUSE:
            return Decision(
                (), (*turn.errors, f"{len(turn.calls)} tool calls in one turn: make one at a time.")
            )
        chosen = turn.calls if self.calls is Calls.ALL else turn.calls[:1]
        if RESPOND not in tools and any(call.name == RESPOND for call in chosen):
            # Environments would take a tool call of this name for a message to the user.
            return Decision(
                (),
                (
                    *turn.errors,
                    f"There is no tool named {RESPOND!r}: write to the user in plain text.",
                ),
            )
        return Decision(tuple(chosen), turn.errors)


@dataclass(frozen=True, slots=True)
class TextActions:
    """Each turn is one action written as text; writing to the user is an action too."""

    form: TextForm
    text_actions: ClassVar[bool] = True
    several: ClassVar[bool] = False

    def system_prompt(self, rules: str, tools: Sequence[Json]) -> str:
        """The system prompt for an environment whose own is `rules`."""
        return system_prompt(rules, tools, self.form)

    def act(self, turn: ReadTurn, tools: Collection[str]) -> Decision:
        if turn.calls:
            return Decision(
                (), (*turn.errors, "There are no tool calls here: write the action as text.")
            )
        read = read_action(turn.content)
        if turn.errors or isinstance(read, str):
            return Decision((), turn.errors or (str(read),))
        return Decision((read,))


Strategy = ToolCalling | TextActions
"""Prompting of a policy and reading of its turns."""


def _tool_calling(args: Mapping[str, Json]) -> ToolCalling:
    single_tool = args.get("single_tool", False)
    calls = args.get("calls", Calls.FIRST)
    has_others = set(args) - {"single_tool", "calls"}
    if has_others or not isinstance(single_tool, bool) or calls not in list(Calls):
        raise JobFailure(
            "agent_args of tool-calling are single_tool: true|false and calls: first|all|refuse, "
            f"not {_brief(args)}; few-shot also takes examples"
        )
    return ToolCalling(single_tool, Calls(calls))


def _few_shot(args: Mapping[str, Json]) -> ToolCalling:
    examples = args.get("examples")
    is_list = isinstance(examples, Sequence) and not isinstance(examples, str)
    if not is_list or not examples or not all(map(_is_example, examples)):
        raise JobFailure(
            f"agent_args of few-shot need examples, a list of texts, not {_brief(args)}"
        )
    others = {name: value for name, value in args.items() if name != "examples"}
    strategy = _tool_calling(others)
    return replace(strategy, examples=tuple(examples))


def _is_example(example: Json) -> bool:
    return isinstance(example, str) and example.strip() != ""


def _text(form: TextForm, args: Mapping[str, Json]) -> TextActions:
    if args:
        raise JobFailure(f"agent_args of {form} are none, not {_brief(args)}")
    return TextActions(form)


def _brief(args: Mapping[str, Json]) -> str:
    return f"{dict(args)!r:.200}"


AGENTS: dict[str, Callable[[Mapping[str, Json]], Strategy]] = {
    "tool-calling": _tool_calling,
    "act": partial(_text, TextForm.ACT),
    "react": partial(_text, TextForm.REACT),
    "few-shot": _few_shot,
}
"""Strategies by name. Each takes the job's agent_args."""


def agent_factory(name: str, args: Mapping[str, Json]) -> Strategy:
    """The strategy of that name. Raises JobFailure for an unknown name or wrong arguments."""
    if name not in AGENTS:
        raise JobFailure(
            f"agent strategy {name!r} is unknown; there are {', '.join(sorted(AGENTS))}"
        )
    return AGENTS[name](args)
