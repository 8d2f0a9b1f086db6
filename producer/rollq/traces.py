"""The traces of an agent program's episode by kind: its own conversation, and those of helpers.

Claude Code, Codex and their like ask the policy for more than their next turn: sub-agents, titles,
summaries of a long conversation. The journal does not say which request is which, so this module
tells it from what each one repeats. Pure values, standard library only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollq.events import Event, Message, Observed, Prompt, Sampled

Kind = Literal["main", "helper"]


@dataclass(slots=True)
class _Trace:
    prompt: Prompt
    opened: int
    """The place of its prompt among the events."""
    sampled: int
    """The place of its last sampled event so far."""
    answers: list[Message]
    """The trace's finished turns."""
    kind: Kind = "helper"

    @property
    def tools(self) -> set[str]:
        """The names of its tools."""
        return {str((tool.get("function") or tool).get("name")) for tool in self.prompt.tools}

    def repeated(self, role: str) -> list[Message]:
        """The messages of this role in its prompt."""
        return [message for message in self.prompt.messages if message["role"] == role]


def trace_kinds(events: Iterable[Event]) -> list[Kind]:
    """The kind of each trace of an agent program's episode.

    The first trace with tools is main, or the first one if none has tools. A later one goes on with
    the main conversation if nothing is sampled any more in the main trace before it, if it has all
    tools of the first, and if it either repeats as many turns as that conversation has, or its last
    turn (an edited history, or the end of one), or repeats none under the first's system prompt (it
    begins again, with a summary). All others are helpers. Each of `Job.models` has a main
    conversation of its own.
    """
    traces = _traces(events)
    for model in {trace.prompt.model for trace in traces}:
        _mark_main([trace for trace in traces if trace.prompt.model == model])
    return [trace.kind for trace in traces]


def _mark_main(traces: Sequence[_Trace]) -> None:
    first = next((trace for trace in traces if trace.tools), traces[0])
    main = None
    for trace in traces:
        if trace is first or (main is not None and _goes_on(trace, main, first)):
            main = trace
            main.kind = "main"


def _traces(events: Iterable[Event]) -> list[_Trace]:
    traces: list[_Trace] = []
    for place, event in enumerate(events):
        if isinstance(event, Prompt):
            traces.append(_Trace(event, place, place, []))
        elif isinstance(event, Sampled | Observed):
            trace = traces[-1 if event.trace is None else event.trace]
            if isinstance(event, Sampled):
                trace.sampled = place
            else:
                trace.answers.append(event.message)
    return traces


def _goes_on(trace: _Trace, main: _Trace, first: _Trace) -> bool:
    """True if the trace goes on with the conversation of the trace `main`, which `first` opened."""
    if main.sampled > trace.opened or not first.tools <= trace.tools:
        return False
    repeated = trace.repeated("assistant")
    if len(repeated) == len(first.repeated("assistant")):
        return trace.repeated("system") == first.repeated("system")
    turns = main.repeated("assistant") + main.answers
    return len(repeated) >= len(turns) or _likeness(repeated[-1:]) == _likeness(turns[-1:])


def _likeness(turns: Sequence[Message]) -> list[Any]:
    """One part per turn, equal for a turn and for what a client makes of it: the ids of its calls,
    or its words.
    """
    parts: list[Any] = []
    for turn in turns:
        ids = sorted(str(call.get("id")) for call in turn.get("tool_calls") or ())
        parts.append(ids or str(turn.get("content")).split())
    return parts
