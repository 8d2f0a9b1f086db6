"""The hook between two turns that a job's `context` names."""

from collections.abc import Callable, Sequence

from rollq.events import Message

ContextHook = Callable[[Sequence[Message], Sequence[Message], int], "Sequence[Message] | None"]
"""Shortens a conversation that has grown long. It gets the messages of the episode's first prompt,
those of the present trace, which end with the replies to a turn, and the number of tokens that they
are. It returns the messages with which a new trace begins, which end with a message of the user or
a tool and show no other images; None: the trace goes on.
"""
