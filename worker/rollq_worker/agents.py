"""Agent strategies: what the policy is told beside the environment's policy, and how a sampled turn becomes an action.

A strategy sees text and values only, never tokens: those are the renderer's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rollq.errors import JobFailure
from rollq.job import Json
from rollq_worker.protocols import RESPOND, Action, ReadTurn

SINGLE_TOOL = (
    "In each turn, either make exactly one tool call or write to the user, never both. "
    "Wait for the result of a tool call before you make the next one."
)


class Agent(Protocol):
    """One way to turn what was sampled into what is done."""

    def system_prompt(self, policy: str) -> str:
        """The system prompt for an environment with this policy."""
        ...

    def act(self, turn: ReadTurn) -> Action | None:
        """The action of a turn; None when the turn cannot be acted on."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCalling:
    """At most one tool call a turn, the first one; a turn without a call speaks to the user (tau-bench's agent)."""

    single_tool: bool = False
    """Append the single-tool instruction to the system prompt."""

    def system_prompt(self, policy: str) -> str:
        return f"{policy}\n\n{SINGLE_TOOL}" if self.single_tool else policy

    def act(self, turn: ReadTurn) -> Action | None:
        if turn.calls:
            return turn.calls[0]
        return None if turn.errors else Action(RESPOND, {"content": turn.content})


def _tool_calling(args: Mapping[str, Json]) -> Agent:
    single_tool = args.get("single_tool", False)
    if set(args) - {"single_tool"} or not isinstance(single_tool, bool):
        raise JobFailure(f"agent_args of tool-calling are single_tool: true|false, not {dict(args)!r}")
    return ToolCalling(single_tool)


AGENTS: dict[str, Callable[[Mapping[str, Json]], Agent]] = {"tool-calling": _tool_calling}
"""Strategy by name; takes the job's agent_args."""


def agent_factory(name: str, args: Mapping[str, Json] | None = None) -> Agent:
    """The strategy of that name. Raises JobFailure for an unknown name or wrong arguments."""
    if name not in AGENTS:
        raise JobFailure(f"no agent strategy is called {name!r}; there is {', '.join(sorted(AGENTS))}")
    return AGENTS[name](args or {})
