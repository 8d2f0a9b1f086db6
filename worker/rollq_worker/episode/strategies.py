"""Agent strategies: what the policy is told beside the environment's policy, and how a sampled turn becomes an action.

A strategy sees text and values only, never tokens: those are the renderer's.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.protocols import RESPOND, Action, ReadTurn

SINGLE_TOOL = (
    "In each turn, either make exactly one tool call or write to the user, never both. "
    "Wait for the result of a tool call before you make the next one."
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a turn comes to."""

    actions: Sequence[Action] = ()
    """In order; empty when the turn cannot be acted on. Calls are the first ones of the turn."""
    errors: Sequence[str] = ()
    """What the policy is told is wrong with it."""


class Agent(Protocol):
    """One way to turn what was sampled into what is done."""

    @property
    def several(self) -> bool:
        """Whether it may carry out several calls of one turn."""
        ...

    def system_prompt(self, policy: str) -> str:
        """The system prompt for an environment with this policy."""
        ...

    def act(self, turn: ReadTurn, tools: Container[str]) -> Decision:
        """What to do after a turn, in an environment with tools of these names."""
        ...


class Calls(StrEnum):
    """What becomes of several tool calls in one turn."""

    FIRST = "first"
    """The first one is carried out; the others stay in the tokens and are counted (tau-bench's agent)."""
    ALL = "all"
    """They are carried out one after the other, until the episode ends."""
    REFUSE = "refuse"
    """None is: the turn counts as malformed."""


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """Tool calls act on the environment; a turn without one speaks to the user."""

    single_tool: bool = False
    """Append the single-tool instruction to the system prompt."""
    calls: Calls = Calls.FIRST

    @property
    def several(self) -> bool:
        return self.calls is Calls.ALL

    def system_prompt(self, policy: str) -> str:
        return f"{policy}\n\n{SINGLE_TOOL}" if self.single_tool else policy

    def act(self, turn: ReadTurn, tools: Container[str]) -> Decision:
        if not turn.calls:
            return Decision((), turn.errors) if turn.errors else Decision((Action(RESPOND, {"content": turn.content}),))
        if len(turn.calls) > 1 and self.calls is Calls.REFUSE:
            return Decision((), (*turn.errors, f"{len(turn.calls)} tool calls in one turn: make one at a time."))
        chosen = turn.calls if self.calls is Calls.ALL else turn.calls[:1]
        if RESPOND not in tools and any(call.name == RESPOND for call in chosen):
            # A tool call by that name must not speak to the user: environments take it for the real thing.
            return Decision((), (*turn.errors, f"There is no tool named {RESPOND!r}: write to the user in plain text."))
        return Decision(tuple(chosen), turn.errors)


def _tool_calling(args: Mapping[str, Json]) -> Agent:
    single_tool, calls = args.get("single_tool", False), args.get("calls", Calls.FIRST)
    if set(args) - {"single_tool", "calls"} or not isinstance(single_tool, bool) or calls not in list(Calls):
        raise JobFailure(
            f"agent_args of tool-calling are single_tool: true|false and calls: first|all|refuse, not {dict(args)!r}"
        )
    return ToolCalling(single_tool, Calls(calls))


AGENTS: dict[str, Callable[[Mapping[str, Json]], Agent]] = {"tool-calling": _tool_calling}
"""Strategy by name; takes the job's agent_args."""


def agent_factory(name: str, args: Mapping[str, Json] | None = None) -> Agent:
    """The strategy of that name. Raises JobFailure for an unknown name or wrong arguments."""
    if name not in AGENTS:
        raise JobFailure(f"no agent strategy is called {name!r}; there is {', '.join(sorted(AGENTS))}")
    return AGENTS[name](args or {})
