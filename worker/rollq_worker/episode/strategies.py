"""Agent strategies: the system prompt, and how a sampled turn becomes actions.

A strategy sees texts and values, never tokens.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.protocols import RESPOND, Action, ReadTurn

SINGLE_TOOL = (
    "In each turn, either make exactly one tool call or write to the user, never both. "
    "Wait for the result of a tool call before you make the next one."
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do after a turn."""

    actions: Sequence[Action] = ()
    """What to do, in order. Calls are the first ones of the turn. Empty when the turn cannot be acted on."""
    errors: Sequence[str] = ()
    """What was wrong with the turn, for the policy."""


class Calls(StrEnum):
    """What to do with several tool calls in one turn."""

    FIRST = "first"
    """Carry out the first, as tau-bench's agent does. The others stay in the tokens and are counted."""
    ALL = "all"
    """Carry them out one after the other, until the episode ends."""
    REFUSE = "refuse"
    """Carry out none: the turn counts as malformed."""


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """Tool calls act on the environment; a turn without one speaks to the user."""

    single_tool: bool = False
    """Append the single-tool instruction to the system prompt."""
    calls: Calls = Calls.FIRST

    @property
    def several(self) -> bool:
        """Whether several calls of one turn may be carried out."""
        return self.calls is Calls.ALL

    def system_prompt(self, policy: str) -> str:
        return f"{policy}\n\n{SINGLE_TOOL}" if self.single_tool else policy

    def act(self, turn: ReadTurn, tools: Container[str]) -> Decision:
        """What to do after a turn; `tools` are the names that the environment has."""
        if not turn.calls:
            return Decision((), turn.errors) if turn.errors else Decision((Action(RESPOND, {"content": turn.content}),))
        if len(turn.calls) > 1 and self.calls is Calls.REFUSE:
            return Decision((), (*turn.errors, f"{len(turn.calls)} tool calls in one turn: make one at a time."))
        chosen = turn.calls if self.calls is Calls.ALL else turn.calls[:1]
        if RESPOND not in tools and any(call.name == RESPOND for call in chosen):
            # Environments would take a tool call of this name for a message to the user.
            return Decision((), (*turn.errors, f"There is no tool named {RESPOND!r}: write to the user in plain text."))
        return Decision(tuple(chosen), turn.errors)


def _tool_calling(args: Mapping[str, Json]) -> ToolCalling:
    single_tool, calls = args.get("single_tool", False), args.get("calls", Calls.FIRST)
    if set(args) - {"single_tool", "calls"} or not isinstance(single_tool, bool) or calls not in list(Calls):
        raise JobFailure(
            f"agent_args of tool-calling are single_tool: true|false and calls: first|all|refuse, not {dict(args)!r}"
        )
    return ToolCalling(single_tool, Calls(calls))


AGENTS: dict[str, Callable[[Mapping[str, Json]], ToolCalling]] = {"tool-calling": _tool_calling}
"""Strategies by name. Each takes the job's agent_args."""


def agent_factory(name: str, args: Mapping[str, Json] | None = None) -> ToolCalling:
    """The strategy of that name. Raises JobFailure for an unknown name or wrong arguments."""
    if name not in AGENTS:
        raise JobFailure(f"agent strategy {name!r} is unknown; there is {', '.join(sorted(AGENTS))}")
    return AGENTS[name](args or {})
